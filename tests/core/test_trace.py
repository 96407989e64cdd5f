import threading

from headrace.core.trace import RING_SIZE, Tracer


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
