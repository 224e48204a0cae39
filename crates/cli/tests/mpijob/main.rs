//! MPIJobs on this machine, without Kubernetes. Pods are namespaces with the image's files, and with the key
//! and the hostfile in the places where the operator and the kubelet put them. `scripts/test --all` runs the
//! long tests too.
//!
//! `RINGPULL_IMAGE_ROOT` names the root file system of an image built from `mpijob/Dockerfile`; without it
//! the image's files are laid over this machine's own root file system.

mod cases;
mod elastic;
mod operator;
mod pod;
