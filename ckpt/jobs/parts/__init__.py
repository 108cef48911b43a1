"""Parts of a job: what one machine of several measures, and how their documents become the report of the whole."""
