//! Object stores: S3 and alike.
