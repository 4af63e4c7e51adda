#!/usr/bin/env bash
# Automodel writes a program here that merges the shards.
