"""How the bytes of blocks reach another pool: by mapping (`shm`), over a call (`grpc`), in one process (`local`)."""
