      apt-get update
      apt-get upgrade -y -o DPkg::Lock::Timeout=300
      apt-get install -y -o DPkg::Lock::Timeout=300 curl qemu-guest-agent
      curl -fsSL https://get.rke2.io -o /run/install-rke2
      INSTALL_RKE2_VERSION=v1.36.3+rke2r1 INSTALL_RKE2_TYPE=agent sh /run/install-rke2
      install -d /var/lib/rancher/rke2/agent/images
      for name in core canal; do
        curl -fsSL "https://github.com/rancher/rke2/releases/download/v1.36.3%2Brke2r1/rke2-images-$name.linux-$(dpkg --print-architecture).tar.zst" -o /var/lib/rancher/rke2/agent/images/$name.tar.zst
      done
