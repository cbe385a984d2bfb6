"""Reports: plain dataclasses that become JSON (with a schema_version), tables or pages."""
