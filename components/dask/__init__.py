"""Room of Dask: runs Beam pipelines on a Dask cluster; the section `beam` of the configuration."""
