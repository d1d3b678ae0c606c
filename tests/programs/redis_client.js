// Uses a front end by Node's library: redis_test.py.
'use strict';

const assert = require('assert');
const {createClient} = require('redis');

async function main() {
  const client = createClient({url: `redis://127.0.0.1:${process.argv[2]}`});
  await client.connect();
  assert.strictEqual(await client.set('node', 'value', {EX: 100}), 'OK');
  assert.strictEqual(await client.get('node'), 'value');
  assert.strictEqual(await client.ttl('node'), 100);
  assert.strictEqual(await client.get('none'), null);
  // Sent together, as everything is that is begun in one turn.
  const counts = await Promise.all(Array.from({length: 1000}, () => client.incr('count')));
  assert.deepStrictEqual(counts, Array.from({length: 1000}, (_, i) => i + 1));
  await client.mSet({a: '1', b: '2'});
  assert.deepStrictEqual(await client.mGet(['a', 'none', 'b']), ['1', null, '2']);
  const keys = [];
  for await (const key of client.scanIterator()) keys.push(key);
  assert.deepStrictEqual(keys.sort(), ['a', 'b', 'count', 'node']);
  await assert.rejects(client.lPush('list', 'element'), /unknown command/);
  await client.quit();
  console.log('all as expected');
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
