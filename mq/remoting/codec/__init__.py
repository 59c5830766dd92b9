"""Bytes to values and back: frames, headers, bodies. Pure: no socket, no thread, no clock.

    frame.py               a frame, and how a stream is cut into frames
    json_header.py         the two encodings of a frame's header
    binary_header.py
    fields.py              how a request or an answer is declared: typed header fields
    requests/              the table of requests, for both ends
    response_codes.py
    fastjson.py            JSON as fastjson writes it, which is not always JSON
    json_body.py           how a JSON body is declared
    bodies/                the JSON bodies
    batch.py records.py    bodies of messages
    text_properties.py     bodies that are Java properties
    registration.py        the compressed body of REGISTER_BROKER
    signature.py           ACL

Whatever comes from the other end is hostile: every length is checked before anything is allocated, and what
is wrong is a RemotingError.
"""
