#!/bin/sh
# Serves the tools of one task, by its slug, once the task's files are there.
set -eu
cd /app
./serve.sh &
until wget -qO /dev/null http://127.0.0.1:8000/health; do sleep 0.1; done
python3 -B tools/begin.py "$1"
wait
