"""Pictures: every figure and every box with controls that a notebook shows.

Only this package imports matplotlib and ipywidgets, and the algorithms know nothing of it.

The course's hand:

    colours.py    colours of forward, backward, ranks and axes; an empty figure
    paper.py      strokes of the steps: cells, chips, arrows
    controls.py   a choice among options that works from the keyboard
    shown.py      the forms of a picture: a widget, a still picture, a line of text

Messages of ranks:

    ledger_figures.py  timeline, matrix_figure: the figures of a `Ledger`
    marks.py, axes.py  the marks of a timeline, and its fills by axis
    stepper.py         stepper: an algorithm round by round; steps_figure.py draws each step

One topic each:

    plan_figures.py       bars of parameters, FLOPs and recipes, curves of 6ND, roofs and laws (01)
    memory_figures.py     memory_figure, bill_axes, strategy_map (notebooks 01 and 09)
    calculator.py         calculator: a GPU's bill with sliders (01)
    fsdp_chart.py         lanes, measured_lanes: a step as two lanes (05); fsdp_explorer.py, with controls
    gantt.py              gantt: a pipeline's schedule (07); schedule_explorer.py, with controls
    schedule_workbench.py Workbench: a schedule placed by hand (07)
    format_explorer.py    formats, gradients: the bits of a number (09)
    mesh_explorer.py      mesh_explorer: a rank's part, groups and wires (10); mesh_figure.py draws it
    strategy_advisor.py   strategy_advisor: all layouts of a cluster (10)
    hybrid_figures.py     sheet_figure, pieces_figure, nodes_figure, memory_bars, published_figure (10)
    router_playground.py  router_playground: rows, drops and the slowest rank of a mixture (11)
    operations_room.py    operations_room: sixty steps of 16 ranks, five incidents, seven levers (12)
    layouts_figure.py     parity, traffic, field, long_run: several layouts side by side (13)
    your_page.py          YourPage: the results of the capstone on one page (13)

Import each from its module: `from course_lib.pictures.gantt import gantt`.
"""
