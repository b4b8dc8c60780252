// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

type setup struct {
	// Of the Env.
	hosts, otherHosts int
	scenario          []func(*pvesim.Scenario)
	guests            pvesim.GuestRuntime
	// Of a Process.
	neverPolled, noPolling bool
	settings               []func(*instance.Settings)
	metrics                instance.Metrics
	hostSettings           declared.Settings
	kube                   client.Client
	kubeCluster            string
	asRoot                 bool
	catalog                instancetype.Catalog
}

// Option configures an Env or a Process.
type Option func(*setup)

// Hosts sets the number of Hosts of Region; 1 by default.
func Hosts(n int) Option { return func(s *setup) { s.hosts = n } }

// OtherHosts adds a second Cluster with that number of Hosts.
func OtherHosts(n int) Option { return func(s *setup) { s.otherHosts = n } }

// Scenario changes Region's Cluster.
func Scenario(changes ...func(*pvesim.Scenario)) Option {
	return func(s *setup) { s.scenario = append(s.scenario, changes...) }
}

// Cores sets the CPU cores of each Host of Region. A guest that is not ours has two of them.
func Cores(n int) Option {
	return Scenario(func(s *pvesim.Scenario) {
		for i := range s.Hosts {
			s.Hosts[i].Cores = n
		}
	})
}

// HA sets the release of Region's Cluster, and grants the privilege for HA.
func HA(release string) Option {
	return Scenario(func(s *pvesim.Scenario) {
		s.Version = release
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Sys.Console")
	})
}

// Guests sets what runs in the VMs of Region.
func Guests(runtime pvesim.GuestRuntime) Option { return func(s *setup) { s.guests = runtime } }

// NeverPolled makes a Process whose Clusters were never polled.
func NeverPolled() Option { return func(s *setup) { s.neverPolled, s.noPolling = true, true } }

// NoPolling makes a Process that polls its Clusters once, and then only on request.
func NoPolling() Option { return func(s *setup) { s.noPolling = true } }

// Settings changes the settings of the operations.
func Settings(change func(*instance.Settings)) Option {
	return func(s *setup) { s.settings = append(s.settings, change) }
}

// Metrics sets the metrics of the operations.
func Metrics(m instance.Metrics) Option { return func(s *setup) { s.metrics = m } }

// HostSettings sets the settings of the Hosts.
func HostSettings(settings declared.Settings) Option {
	return func(s *setup) { s.hostSettings = settings }
}

// Kube makes a Process that uses another client of the Kubernetes API.
func Kube(kube client.Client) Option { return func(s *setup) { s.kube = kube } }

// KubeCluster makes a Process of another Kubernetes cluster.
func KubeCluster(id string) Option { return func(s *setup) { s.kubeCluster = id } }

// AsRoot makes a Process with a root login in addition to its token.
func AsRoot() Option { return func(s *setup) { s.asRoot = true } }

// Catalog makes a Process with other instance types than the default ones.
func Catalog(catalog instancetype.Catalog) Option { return func(s *setup) { s.catalog = catalog } }

// roots returns the root logins of a Process.
func (w *Env) roots(s setup) map[string]proxmox.Root {
	w.T.Helper()
	if !s.asRoot {
		return nil
	}
	config := ClusterConfig(w.Sim, Region)
	config.Root = &proxmox.RootLogin{Username: proxmox.RootUser, Password: pvesim.RootPassword}
	root, err := proxmox.NewRoot(config, ClientOptions(w.Sim))
	w.Expect(err).NotTo(gomega.HaveOccurred())
	return map[string]proxmox.Root{Region: root}
}
