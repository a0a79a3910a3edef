#!/usr/bin/env python3
"""Counts phrases in comments, docstrings and Markdown that are hard to read, for each folder.

    .ci/prose.py [--overall N] [--folder N] [-l] [PATH...]

The score is the number of phrases for each 1,000 words. The exit status is 1 if the score of all files exceeds --overall,
or that of a folder with at least 300 words exceeds --folder. -l lists each phrase. Tests are counted separately.
.ci/prose.txt lists the phrases as regular expressions.
"""

import argparse
import collections
import os
import re
import subprocess
import sys

MIN_WORDS = 300


def comments(path):
    """Yields the line number and the text of each line that has a comment."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    if path.endswith(".go"):
        yield from go_comments(lines)
    elif path.endswith(".py"):
        yield from python_comments(lines)
    else:
        yield from markdown(lines)


def go_comments(lines):
    if lines and "Code generated" in lines[0]:
        return
    for number, line in enumerate(lines, 1):
        match = re.search(r"(?:^|\s)//\s?(?!go:|nolint|export )(.*)", line)
        if match and '"' not in line[: match.start()]:
            yield number, match.group(1)


def python_comments(lines):
    docstring = False
    for number, line in enumerate(lines, 1):
        quotes = line.count('"""')
        if docstring or quotes:
            yield number, line.replace('"""', "")
            if quotes == 1:
                docstring = not docstring
        elif match := re.search(r"(?:^|\s)#\s?(.*)", line):
            yield number, match.group(1)


def markdown(lines):
    code = False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            yield number, line


def folder_of(path):
    tests = path.endswith("_test.go") or "/tests/" in path
    return (os.path.dirname(path) or ".") + (" (tests)" if tests else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overall", type=float)
    parser.add_argument("--folder", type=float)
    parser.add_argument("-l", "--list", action="store_true")
    parser.add_argument("paths", nargs="*")
    options = parser.parse_args()

    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "prose.txt"), encoding="utf-8") as file:
        phrases = [line.strip() for line in file if line.strip() and not line.startswith("#")]
    pattern = re.compile("|".join(f"(?:{phrase})" for phrase in phrases), re.IGNORECASE)

    files = subprocess.run(["git", "ls-files", "--", *options.paths], capture_output=True, text=True, check=True).stdout
    words, hits = collections.Counter(), collections.Counter()
    for path in files.splitlines():
        if not path.endswith((".go", ".py", ".md")) or not os.path.isfile(path):
            continue
        for number, text in comments(path):
            words[folder_of(path)] += len(text.split())
            for match in pattern.finditer(text):
                hits[folder_of(path)] += 1
                if options.list:
                    print(f"{path}:{number}: {match.group(0)}: {text.strip()}")
    if options.list:
        return 0

    def score(folder):
        return 1000 * hits[folder] / words[folder]

    total = 1000 * sum(hits.values()) / max(1, sum(words.values()))
    print(f"{total:.1f} phrases for each 1,000 of {sum(words.values())} words")
    failed = options.overall is not None and total > options.overall
    for folder in sorted((f for f in words if words[f] >= MIN_WORDS), key=score, reverse=True):
        over = options.folder is not None and score(folder) > options.folder
        failed = failed or over
        print(f"{score(folder):6.1f}  {folder}{'  OVER THE LIMIT' if over else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
