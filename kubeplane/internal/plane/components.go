// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane

import "strconv"

// The names of the components: of their programs in this binary, their logs, and their Kubernetes users.
const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
)

// component is one program of the plane: its command line and its readiness endpoint.
type component struct {
	name  string
	args  []string
	ready string
}

func etcdComponent(l layout, p ports) component {
	client, peer := p.etcd.url("http"), p.etcdPeer.url("http")
	return component{
		name:  etcd,
		ready: client + "/health",
		args: []string{
			"--name=kubeplane",
			"--data-dir=" + l.etcdData(),
			"--listen-client-urls=" + client,
			"--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer,
			"--initial-advertise-peer-urls=" + peer,
			"--initial-cluster=kubeplane=" + peer,
			"--socket-reuse-port",
			"--unsafe-no-fsync", // the data need not survive a power cut, and disks of test machines are slow
		},
	}
}

func apiServerComponent(l layout, p ports, o Options) component {
	c := component{
		name:  apiServer,
		ready: p.apiServer.url("https") + "/readyz",
		args: append(serving(l, p.apiServer),
			"--etcd-servers="+p.etcd.url("http"),
			"--advertise-address=127.0.0.1",
			"--endpoint-reconciler-type=none", // a loopback address is not allowed in Endpoints
			"--service-cluster-ip-range=10.96.0.0/16",
			"--allow-privileged",

			"--client-ca-file="+l.pki("ca.crt"),
			"--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction",
			"--enable-bootstrap-token-auth",

			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file="+l.pki("sa.pub"),
			"--service-account-signing-key-file="+l.pki("sa.key"),

			"--proxy-client-cert-file="+l.pki("front-proxy-client.crt"),
			"--proxy-client-key-file="+l.pki("front-proxy-client.key"),
			"--requestheader-client-ca-file="+l.pki("front-proxy-ca.crt"),
			"--requestheader-allowed-names=front-proxy-client",
			"--requestheader-username-headers=X-Remote-User",
			"--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",

			"--kubelet-client-certificate="+l.pki("kubelet-client.crt"),
			"--kubelet-client-key="+l.pki("kubelet-client.key"),
			"--kubelet-preferred-address-types=InternalIP,Hostname",
		),
	}
	if o.RuntimeConfig != "" {
		c.args = append(c.args, "--runtime-config="+o.RuntimeConfig)
	}
	if o.Audit {
		c.args = append(c.args, "--audit-policy-file="+l.auditPolicy(), "--audit-log-path="+l.auditLog())
	}
	return c.withFeatureGates(o)
}

func controllerManagerComponent(l layout, p ports, o Options) component {
	return component{
		name:  controllerManager,
		ready: p.controllerManager.url("https") + "/healthz",
		args: append(append(serving(l, p.controllerManager), connecting(l, controllerManager)...),
			"--controllers=*,bootstrapsigner,tokencleaner",
			"--cluster-signing-cert-file="+l.pki("ca.crt"),
			"--cluster-signing-key-file="+l.pki("ca.key"),
			"--root-ca-file="+l.pki("ca.crt"),
			"--service-account-private-key-file="+l.pki("sa.key"),
			"--use-service-account-credentials",
			"--node-monitor-grace-period="+o.NodeMonitorGracePeriod.String(),
		),
	}.withFeatureGates(o)
}

func schedulerComponent(l layout, p ports, o Options) component {
	return component{
		name:  scheduler,
		ready: p.scheduler.url("https") + "/healthz", // Kubernetes 1.30 has no /readyz here
		args:  append(serving(l, p.scheduler), connecting(l, scheduler)...),
	}.withFeatureGates(o)
}

func (c component) withFeatureGates(o Options) component {
	if o.FeatureGates != "" {
		c.args = append(c.args, "--feature-gates="+o.FeatureGates)
	}
	return c
}

// serving is how each of the three Kubernetes servers listens.
func serving(l layout, p port) []string {
	return []string{
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(p.number),
		"--permit-port-sharing",
		"--tls-cert-file=" + l.pki("server.crt"),
		"--tls-private-key-file=" + l.pki("server.key"),
	}
}

// connecting is how the two clients among the components reach the API server.
func connecting(l layout, name string) []string {
	kubeconfig := l.kubeconfig(name)
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--leader-elect=false",
		// With the default limits the first service accounts take four seconds longer, and large tests wait on us.
		"--kube-api-qps=300",
		"--kube-api-burst=600",
	}
}
