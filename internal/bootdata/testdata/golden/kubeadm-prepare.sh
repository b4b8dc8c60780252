      install -d -m 0755 /etc/apt/keyrings
      curl -fsSL https://pkgs.k8s.io/core:/stable:/v1.36/deb/Release.key -o /etc/apt/keyrings/kubernetes.asc
      echo 'deb [signed-by=/etc/apt/keyrings/kubernetes.asc] https://pkgs.k8s.io/core:/stable:/v1.36/deb/ /' > /etc/apt/sources.list.d/kubernetes.list
      apt-get update
      apt-get upgrade -y -o DPkg::Lock::Timeout=300
      apt-get install -y -o DPkg::Lock::Timeout=300 containerd kubelet kubeadm qemu-guest-agent
      apt-mark hold kubelet kubeadm
      ctr --namespace k8s.io images pull "registry.k8s.io/pause:3.8"
      ctr --namespace k8s.io images pull "registry.k8s.io/kube-proxy:v1.36.3"
