      apt-get update
      apt-get upgrade -y -o DPkg::Lock::Timeout=300
      apt-get install -y -o DPkg::Lock::Timeout=300 curl qemu-guest-agent
      curl -fsSL https://get.k3s.io -o /run/install-k3s
      INSTALL_K3S_VERSION=v1.36.3+k3s1 INSTALL_K3S_EXEC=agent INSTALL_K3S_SKIP_ENABLE=true sh /run/install-k3s
      install -d /var/lib/rancher/k3s/agent/images
      curl -fsSL "https://github.com/k3s-io/k3s/releases/download/v1.36.3%2Bk3s1/k3s-airgap-images-$(dpkg --print-architecture).tar.zst" -o /var/lib/rancher/k3s/agent/images/k3s-airgap-images.tar.zst
