"""The figures birthmark promises, taken side by side with what one would use otherwise.

`./dev bench` prints the table. Every figure is a ratio of medians within one run, ours and the base in turns,
so that it holds on a slow machine and a busy one. docs/performance.md says what is measured, and why.
"""
