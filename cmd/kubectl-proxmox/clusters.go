// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/operations"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// clusters are the Proxmox clusters: of a file in the format of the controller or of its
// chart, or of the controller in the Kubernetes cluster.
type clusters struct {
	cloudConfig, values, nodeSettings string
	// controller selects the Deployment in the cluster.
	cluster    *kubeCluster
	controller string
}

// flagsOr adds the flags. Without a file, the settings of the controller apply, which are
// read through the Kubernetes API.
func (c *clusters) flagsOr(cluster *kubeCluster, command *cobra.Command) {
	c.fileFlags(cluster, command)
	command.Flags().StringVar(&c.controller, "controller", "", "NAMESPACE/NAME of the controller's Deployment, whose settings apply without --cloud-config and --values (default the only one)")
}

// flags adds the flags. A file is required.
func (c *clusters) flags(cluster *kubeCluster, command *cobra.Command) {
	c.fileFlags(cluster, command)
	command.MarkFlagsOneRequired("cloud-config", "values")
}

func (c *clusters) fileFlags(cluster *kubeCluster, command *cobra.Command) {
	c.cluster = cluster
	flags := command.Flags()
	flags.StringVar(&c.cloudConfig, "cloud-config", "", "path of the cloud config: the Proxmox clusters and their credentials")
	flags.StringVar(&c.values, "values", "", "path of the chart's values, with the Proxmox clusters below config")
	flags.StringVar(&c.nodeSettings, "node-setting-file", "", "path of the file with reserved resources and overcommit ratios of the hosts")
	command.MarkFlagsMutuallyExclusive("cloud-config", "values")
}

func (c *clusters) config() (proxmox.Config, error) {
	if c.values == "" {
		return proxmox.LoadConfig(c.cloudConfig)
	}
	content, err := os.ReadFile(c.values)
	if err != nil {
		return proxmox.Config{}, fmt.Errorf("reading the chart's values: %w", err)
	}
	config, err := proxmox.ParseChartValues(content)
	if err != nil {
		return config, fmt.Errorf("parsing the chart's values %s: %w", c.values, err)
	}
	return config, nil
}

// settings returns the settings of the controller: with a file, its clusters and the
// defaults; otherwise those of the Deployment.
func (c *clusters) settings(ctx context.Context) (operator.Settings, error) {
	if c.cloudConfig == "" && c.values == "" {
		return c.deployedSettings(ctx)
	}
	s := operator.Settings{Options: operator.DefaultOptions(), Catalog: instancetype.DefaultCatalog()}
	var err error
	if s.Cloud, err = c.config(); err != nil {
		return s, err
	}
	s.Hosts, err = declared.LoadSettings(c.nodeSettings)
	return s, err
}

func (c *clusters) deployedSettings(ctx context.Context) (operator.Settings, error) {
	controller, err := c.deployed(ctx)
	if err != nil {
		return operator.Settings{}, err
	}
	s, err := controller.Settings()
	if err != nil {
		return operator.Settings{}, fmt.Errorf("%w; %s", err, useFile)
	}
	if c.nodeSettings != "" {
		s.Hosts, err = declared.LoadSettings(c.nodeSettings)
	}
	return s, err
}

// useFile is what to do if the settings of the controller cannot be read.
const useFile = "to use a local file, set --cloud-config or --values"

// deployed returns the controller in the Kubernetes cluster.
func (c *clusters) deployed(ctx context.Context) (operator.Deployed, error) {
	kube, _, err := c.cluster.connect()
	if err != nil {
		return operator.Deployed{}, err
	}
	controller, err := findController(ctx, kube, c.controller)
	if err != nil {
		return operator.Deployed{}, fmt.Errorf("%w; %s", err, useFile)
	}
	return controller.deployed(ctx), nil
}

// view is the state of the clusters as the controller sees it. It is empty until its
// inventory is refreshed.
type view struct {
	settings  operator.Settings
	clients   []proxmox.Client
	roots     instance.RootClients
	inventory *inventory.Inventory
	// unread joins the errors of the clusters that could not be read, see readReachable.
	unread error
}

func (c *clusters) open() (*view, error) {
	settings, err := c.settings(context.Background())
	if err != nil {
		return nil, err
	}
	return newView(settings, c.cluster.proxmox)
}

func newView(settings operator.Settings, options proxmox.Options) (*view, error) {
	v := &view{settings: settings, roots: instance.RootClients{}}
	for _, cluster := range settings.Cloud.Clusters {
		client, err := proxmox.New(cluster, options)
		if err != nil {
			return nil, err
		}
		v.clients = append(v.clients, client)
		if cluster.HasRoot() {
			if v.roots[cluster.Region], err = proxmox.NewRoot(cluster, options); err != nil {
				return nil, err
			}
		}
	}
	return v.with(v.clients)
}

// with returns an empty view with other clients of the same clusters.
func (v *view) with(clients []proxmox.Client) (*view, error) {
	options := v.settings.Options
	shared, err := inventory.New(clients, inventory.Options{
		Settings: v.settings.Hosts, DetailRange: observed.VMIDRange{From: options.ProxmoxVMID, To: options.ProxmoxVMIDMax},
	})
	return &view{settings: v.settings, clients: clients, roots: v.roots, inventory: shared}, err
}

// replace returns a view of the same clusters with other clients. It polls those that the
// view has polled, and reads these facts on demand.
func (v *view) replace(ctx context.Context, clients []proxmox.Client, facts []poll.Fact) (*view, error) {
	after, err := v.with(clients)
	if err != nil {
		return nil, err
	}
	for region, snapshot := range v.inventory.View().Snapshots {
		if snapshot == nil {
			continue
		}
		after.inventory.Invalidate(region, facts...)
		if err := after.inventory.Refresh(ctx, region); err != nil {
			return nil, err
		}
	}
	return after, nil
}

// read polls each cluster once. It fails if one cannot be read.
func (c *clusters) read(ctx context.Context) (*view, error) {
	v, err := c.readReachable(ctx)
	if err != nil {
		return nil, err
	}
	return v, v.unread
}

// readReachable polls each cluster once. It returns a view of those that can be read, and sets
// unread to the errors of the others. It fails if none can be read.
func (c *clusters) readReachable(ctx context.Context) (*view, error) {
	settings, err := c.settings(ctx)
	if err != nil {
		return nil, err
	}
	v, err := newView(settings, c.cluster.proxmox)
	if err != nil {
		return nil, err
	}
	errs, polls := make([]error, len(v.clients)), sync.WaitGroup{}
	for n, client := range v.clients {
		polls.Go(func() {
			if errs[n] = proxmox.Check(ctx, client); errs[n] == nil {
				errs[n] = v.inventory.Refresh(ctx, client.Region())
			}
		})
	}
	polls.Wait()
	v.unread = errors.Join(errs...)
	if len(v.inventory.View().Snapshots) == 0 {
		return nil, v.unread
	}
	return v, nil
}

// hostOfVMs returns where Proxmox shows VMs; empty for those that it does not show. With an error, some
// regions could not be read.
func (c *clusters) hostOfVMs(ctx context.Context) (of func(v1alpha1.ProviderID) string, err error) {
	v, err := c.readReachable(ctx)
	if err != nil {
		return func(v1alpha1.ProviderID) string { return "" }, err
	}
	now := v.inventory.View()
	return func(id v1alpha1.ProviderID) string {
		guest, _ := now.Guest(id.Region, id.VMID)
		return guest.Host
	}, v.unread
}

// operations returns the operations on the VMs of a Kubernetes cluster.
func (v *view) operations(kube client.Client, source boot.Source, kubeCluster string) (*operations.Operations, *instancetype.Provider, error) {
	types, err := instancetype.New(v.settings.InstanceTypes(v.inventory, slices.Sorted(maps.Keys(v.roots))))
	if err != nil {
		return nil, nil, err
	}
	clients := map[string]proxmox.Client{}
	for _, c := range v.clients {
		clients[c.Region()] = c
	}
	return operations.New(instance.Deps{
		Clients: clients, Inventory: v.inventory, Kube: kube, Clock: clock.RealClock{}, KubeCluster: kubeCluster, Settings: v.settings.Options.InstanceSettings(),
	}, types, source, instance.Metrics{}), types, nil
}

// clusterID returns the UID of the namespace kube-system.
func clusterID(ctx context.Context, kube client.Reader) (string, error) {
	system := &corev1.Namespace{}
	if err := kube.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil {
		return "", fmt.Errorf("reading the UID of namespace %s, which identifies the VMs of this cluster: %w", metav1.NamespaceSystem, err)
	}
	return string(system.UID), nil
}
