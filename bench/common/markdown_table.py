"""Tables in Markdown, for the reports of bench/ and for the page of recorded runs. Needs no matplotlib."""


def markdown_table(header, rows):
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))
