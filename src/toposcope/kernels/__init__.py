"""The hot loops under `toposcope.homology`: one algorithm a file, arrays in, arrays out, inputs already checked."""
