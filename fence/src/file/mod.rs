//! Files and folders of one host.
