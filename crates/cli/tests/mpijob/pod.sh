#!/bin/sh
# The inside of a pod, as the kubelet and the container runtime would make it. Runs in mount, uts, ipc and pid
# namespaces of its own and in the pod's network namespace; everything it mounts goes with them.
#   pod.sh FOLDER BASE LAYER NAME UID FSGROUP CAPABILITIES NO_NEW_PRIVS SSH_FOLDER KEY_MODE WORDS...
# NAME is the host's. KEY_MODE is the one that the operator asks for, or - for what the kubelet makes of the folder.
# The root file system is BASE, with the files of LAYER/files and the programs of LAYER/programs over it if LAYER is not -.
# FOLDER holds: hosts, key, key.pub, volume/; in a launcher also config/, the ConfigMap as the kubelet lays it. Variables
# come from FOLDER/env, one a line; FOLDER/memory has a line PATH SIZE for each volume in memory, FOLDER/lent the folders
# of this machine that the pod has too.
set -eu
folder=$1 base=$2 layer=$3 name=$4 uid=$5 group=$6 capabilities=$7 no_new_privs=$8 ssh=$9
shift 9
key_mode=$1
shift
mount --make-rprivate /
hostname "$name"
volume=$(readlink -f "$folder/volume")

top=$folder/top
mkdir -p "$top"
mount -t tmpfs -o mode=0755 tmpfs "$top"
mkdir "$top/upper" "$top/work" "$top/root"
mount -t overlay -o "lowerdir=$base,upperdir=$top/upper,workdir=$top/work" overlay "$top/root"
root=$top/root
if [ "$layer" != - ]; then
  cp -a "$layer/files/." "$root/"
  for program in "$layer"/programs/*; do
    : >"$root/usr/local/bin/${program##*/}"
    mount --bind "$program" "$root/usr/local/bin/${program##*/}"
  done
fi
mkdir -p "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/train" "$root/etc/mpi" "$root$ssh"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=0755,size=1m tmpfs "$root/dev"
for device in null:3 zero:5 full:7 random:8 urandom:9; do
  mknod -m 0666 "$root/dev/${device%:*}" c 1 "${device#*:}"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=1777,size=256m tmpfs "$root/tmp"
mount -t tmpfs -o mode=0755 tmpfs "$root/run"
mkdir -m 0755 "$root/run/sshd"
while read -r path size; do
  mkdir -p "$root$path"
  mount -t tmpfs -o "mode=1777,size=$size" tmpfs "$root$path"
done <"$folder/memory"
while read -r path; do
  mkdir -p "$root$path"
  mount --bind "$path" "$root$path"
done <"$folder/lent"
touch "$root/etc/hosts"
mount --bind "$folder/hosts" "$root/etc/hosts"
mount --bind "$volume" "$root/train"
# What the example trains on, which images do not hold.
data=/usr/share/datasets/fashion-mnist
mkdir -p "$root$data"
mount --bind "$data" "$root$data"

# A Secret: files in a stamped folder, a link to it, a link to each file, read-only.
project() { # TARGET MODE_OF_TOP
  mount -t tmpfs -o "mode=$2" tmpfs "$1"
  mkdir -m 0755 "$1/..stamp"
  ln -s ..stamp "$1/..data"
}
place() { # TARGET NAME SOURCE MODE
  cp "$3" "$1/..stamp/$2"
  chmod "$4" "$1/..stamp/$2"
  [ "$group" = - ] || chown "0:$group" "$1/..stamp/$2"
  ln -s "..data/$2" "$1/$2"
}
keys=$root$ssh
project "$keys" "$([ "$group" = - ] && echo 1777 || echo 3777)"
# Root's own folder gives the key 0600; a group of files adds its bits to whatever there is.
mode=0644
[ "$ssh" != /root/.ssh ] || mode=0600
if [ "$group" != - ]; then
  chown "0:$group" "$keys"
  [ "$mode" = 0600 ] && mode=0640 || mode=0644
fi
[ "$key_mode" = - ] || mode=$key_mode
place "$keys" id_rsa "$folder/key" "$mode"
place "$keys" id_rsa.pub "$folder/key.pub" 0644
place "$keys" authorized_keys "$folder/key.pub" 0644
mount -o remount,ro "$keys"
if [ -d "$folder/config" ]; then
  mount --bind "$folder/config" "$root/etc/mpi"
  mount -o remount,bind,ro "$root/etc/mpi"
fi

# The last line of the file is to win, and each one goes before those that are there.
tac "$folder/env" >"$folder/env.backwards"
while IFS= read -r line; do
  set -- "$line" "$@"
done <"$folder/env.backwards"
home=/root
[ "$uid" = 0 ] || home=/home/mpiuser
groups=--clear-groups
[ "$group" = - ] || groups="--groups=$group"
more=
[ "$no_new_privs" = no ] || more=--no-new-privs
cd /
# shellcheck disable=SC2086
exec chroot "$root" /usr/bin/setpriv $groups "--reuid=$uid" "--regid=$uid" --inh-caps=-all "--bounding-set=$capabilities" $more \
  env -i -C /train "HOME=$home" "HOSTNAME=$name" "$@"
