import threading

from headrace.core.trace import RING_SIZE, Span, Tracer, chrome_trace


def slices(*spans):
    return [event for event in chrome_trace(spans)["traceEvents"] if event["ph"] == "X"]


def test_a_ring_keeps_the_latest_spans():
    tracer = Tracer("core")
    for step in range(RING_SIZE + 5):
        tracer.add("schedule", step, step + 1, step)
    assert [span.step for span in tracer.spans()] == list(range(5, RING_SIZE + 5))


def test_times_are_microseconds_and_zeros_are_left_out():
    (event,) = slices(Span("core", "schedule", 1.5, 1.75, step=3, num_rows=2))
    assert (event["ts"], event["dur"], event["args"]) == (1_500_000, 250_000, {"step": 3, "num_rows": 2})


def test_each_process_has_its_name():
    events = chrome_trace([Span("core", "a", 0, 1), Span("input", "b", 0, 1), Span("core", "c", 1, 2)])["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert [names[event["pid"]] for event in events if event["ph"] == "X"] == ["core", "input", "core"]


def test_spans_of_one_track_never_overlap():
    spans = [Span("core", "a", 0, 4), Span("core", "b", 1, 2), Span("core", "c", 3, 6), Span("core", "d", 4, 5)]
    assert [(event["name"], event["tid"]) for event in slices(*reversed(spans))] == [
        ("a", 1),
        ("b", 2),
        ("c", 2),
        ("d", 1),
    ]


def test_spans_are_read_while_other_threads_add_some():
    tracer = Tracer("input")
    for i in range(RING_SIZE):
        tracer.add("tokenize", i, i + 1)
    stop = threading.Event()

    def add():
        while not stop.is_set():
            tracer.add("tokenize", 0, 1)

    thread = threading.Thread(target=add)
    thread.start()
    try:
        for _ in range(20):
            assert len(tracer.spans()) == RING_SIZE
    finally:
        stop.set()
        thread.join()
