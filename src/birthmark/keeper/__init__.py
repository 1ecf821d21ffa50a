"""Who stands by a child: the front of `birthmark run`, and the papers of a birth. Neither asyncio nor anyio here."""
