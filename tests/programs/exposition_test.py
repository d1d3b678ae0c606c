#!/usr/bin/env python3
"""The parser of Prometheus's text format refuses what is wrong.

Usage: exposition_test.py [unittest's arguments]
"""

import unittest

from exposition import Exposition


class ExpositionTest(unittest.TestCase):
    GOOD = ("# HELP a_total A\n# TYPE a_total counter\na_total{k=\"v\"} 1\n# HELP h H\n# TYPE h histogram\n"
            "h_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n")

    def test_what_is_right_is_accepted(self):
        self.assertEqual(Exposition(self.GOOD).value("a_total", k="v"), 1)

    def test_what_is_wrong_is_refused(self):
        for old, new in (("a_total{", "b_total{"), ("} 1\n#", "} x\n#"), ("} 1\n#", "} -1\n#"), ("} 1\n#", "} NaN\n#"),
                         ("a_total", "a"), ("h_count 2", "h_count 3"), ("h_sum 3\n", ""), ('le="1"} 1', 'le="1"} 5'),
                         ('h_bucket{le="+Inf"} 2\n', ""), ("# HELP a_total A\n", ""), ('k="v"', 'k="v'),
                         ('k="v"', "k=v"), ("h_count 2\n", "h_count 2"), ("counter", "count"),
                         ('{k="v"} 1\n', '{k="v"} 1\na_total{k="v"} 1\n'), ("# HELP h", "\n# HELP h")):
            with self.subTest(new=new), self.assertRaises((ValueError, KeyError)):
                Exposition(self.GOOD.replace(old, new))


if __name__ == "__main__":
    unittest.main(verbosity=2)
