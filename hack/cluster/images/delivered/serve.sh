#!/bin/sh
exec python3 -B server.py
