#!/bin/sh
# Turns the installed packages into a cloud image. mmdebstrap runs this in the image's root directory.
set -eu

# The boot loaders of SeaBIOS and UEFI. The disk is assembled without loop devices, so grub-install cannot be used.
cat > /tmp/guestimage/early.cfg <<'EOF'
search --no-floppy --label root --set root
set prefix=($root)/boot/grub
EOF
modules='part_gpt ext2 search search_label normal linux serial terminal'
grub-mkimage -O i386-pc -o /boot/grub/core.img -p /boot/grub -c /tmp/guestimage/early.cfg biosdisk $modules
cp /usr/lib/grub/i386-pc/boot.img /boot/grub/
grub-mkimage -O x86_64-efi -o /boot/grub/bootx64.efi -p /boot/grub -c /tmp/guestimage/early.cfg fat efi_gop $modules
apt-get remove -qq -y --auto-remove grub-pc-bin grub-efi-amd64-bin > /dev/null

# Debian 13 compresses modules, and without KVM it takes up to a second to unpack one.
find /usr/lib/modules -name '*.ko.xz' -exec unxz {} +
depmod "$(ls /usr/lib/modules)"
update-initramfs -u

# A plain image has neither containerd nor Kubernetes.
if [ -e /tmp/guestimage/images.tar ]; then
  # The package kubernetes-cni, which kubelet requires, installs the plugins here and not where Debian's containerd expects them.
  mkdir -p /opt/cni/bin /etc/kubernetes/manifests
  mv /usr/lib/cni/* /opt/cni/bin/

  # Import the container images, because guests have no registry. containerd unpacks them when a container needs them.
  cat > /tmp/guestimage/containerd.toml <<'EOF'
version = 2
root = "/var/lib/containerd"
state = "/tmp/guestimage/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "/tmp/guestimage/containerd.sock"
EOF
  ctr() { command ctr --address /tmp/guestimage/containerd.sock --namespace k8s.io "$@"; }
  containerd --config /tmp/guestimage/containerd.toml --log-level warn &
  containerd=$!
  trap 'kill $containerd; wait $containerd || true' EXIT
  for _ in $(seq 100); do ctr version > /dev/null 2>&1 && break; sleep 0.1; done
  ctr images import --no-unpack /tmp/guestimage/images.tar
  for image in $(ctr images ls --quiet); do
    # pinned: the kubelet must not delete images that it cannot pull again.
    ctr images label "$image" io.cri-containerd.image=managed io.cri-containerd.pinned=pinned > /dev/null
  done
  kill $containerd
  wait $containerd || true
  trap - EXIT
fi

systemctl enable systemd-networkd systemd-resolved
# They cost time at boot and have no use in a short-lived guest.
systemctl mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer \
  systemd-pstore.service systemd-binfmt.service proc-sys-fs-binfmt_misc.automount modprobe@drm.service sys-kernel-config.mount \
  sys-kernel-debug.mount sys-kernel-tracing.mount

# Clean state: what differs between guests is created at first boot. mmdebstrap empties /etc/machine-id and needs its files in
# /tmp: without its configuration, its next apt-get works on the machine that builds the image.
rm -rf /tmp/guestimage /etc/ssh/ssh_host_* /var/log/*.log /var/log/apt
echo localhost > /etc/hostname
ln -sf ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf
# Without these files systemd runs the services that follow an update, such as ldconfig.
touch -r /usr /etc/.updated /var/.updated
