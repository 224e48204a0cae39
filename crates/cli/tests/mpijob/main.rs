//! MPIJobs on this machine, without Kubernetes: pods as namespaces, with the image's files, the key and the
//! hostfile as the operator and the kubelet lay them. `scripts/test --all` runs the long ones too.
//!
//! `RINGPULL_IMAGE_ROOT` names the root file system of an image built from `mpijob/Dockerfile`; without it
//! the image's files are laid over this machine's own root file system.

mod cases;
mod elastic;
mod operator;
mod pod;
