"""The pages and files about a graded class, made from its results and executed notebooks.

`feedback` is a page for one submission, `class_page` one for the class; `exports` and `bundle` speak to
Gradescope, Canvas and Moodle; `code` writes what programs that look for copied work read; `reliability`
grades the reference before a release. Content of a submission passes `sanitise` and `disclosure` before a
person sees it.
"""
