// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/operations"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// clusters are the files that list the Proxmox clusters, in the formats of the
// controller and of its chart.
type clusters struct{ cloudConfig, values, nodeSettings string }

func (c *clusters) flags(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&c.cloudConfig, "cloud-config", "", "path of the cloud config: the Proxmox clusters and their credentials")
	flags.StringVar(&c.values, "values", "", "path of the chart's values, with the Proxmox clusters below config")
	flags.StringVar(&c.nodeSettings, "node-setting-file", "", "path of the file with reserved resources and overcommit ratios of the hosts")
	command.MarkFlagsOneRequired("cloud-config", "values")
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
	var values struct {
		Config map[string]any `json:"config"`
	}
	if err := yaml.Unmarshal(content, &values); err != nil {
		return proxmox.Config{}, fmt.Errorf("parsing the chart's values %s: %w", c.values, err)
	}
	if content, err = yaml.Marshal(values.Config); err != nil {
		return proxmox.Config{}, fmt.Errorf("reading the chart's values %s: %w", c.values, err)
	}
	config, err := proxmox.ParseConfig(content)
	if err != nil {
		return config, fmt.Errorf("parsing config of the chart's values %s: %w", c.values, err)
	}
	return config, nil
}

// view is the state of the clusters as the controller sees it. It is empty until its
// inventory is refreshed.
type view struct {
	clients   []proxmox.Client
	inventory *inventory.Inventory
}

func (c *clusters) open() (*view, error) {
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	options := inventory.Options{}
	if c.nodeSettings != "" {
		if options.Settings, err = inventory.LoadSettings(c.nodeSettings); err != nil {
			return nil, err
		}
	}
	v := &view{}
	for _, cluster := range config.Clusters {
		client, err := proxmox.New(cluster, proxmox.Options{})
		if err != nil {
			return nil, err
		}
		v.clients = append(v.clients, client)
	}
	v.inventory, err = inventory.New(v.clients, options)
	return v, err
}

// read polls each cluster once. It fails if one does not respond.
func (c *clusters) read(ctx context.Context) (*view, error) {
	v, err := c.open()
	if err != nil {
		return nil, err
	}
	for _, client := range v.clients {
		if err := proxmox.Check(ctx, client); err != nil {
			return nil, err
		}
	}
	return v, v.inventory.RefreshAll(ctx)
}

// hosts returns the hosts of all clusters with their free capacity.
func (c *clusters) hosts(ctx context.Context) ([]inventory.HostState, error) {
	v, err := c.read(ctx)
	if err != nil {
		return nil, err
	}
	return v.inventory.View().Hosts(), nil
}

// operations returns the operations on the VMs of a Kubernetes cluster, with the
// controller's default settings.
func (v *view) operations(kube client.Client, source boot.Source, kubeCluster string) (*operations.Operations, *instancetype.Provider, error) {
	defaults := operator.DefaultOptions()
	types, err := instancetype.New(instancetype.Deps{
		Inventory: v.inventory, Catalog: instancetype.DefaultCatalog(), Pricing: defaults.Pricing(), Clock: clock.RealClock{},
	})
	if err != nil {
		return nil, nil, err
	}
	clients := map[string]proxmox.Client{}
	for _, c := range v.clients {
		clients[c.Region()] = c
	}
	return operations.New(instance.Deps{
		Clients: clients, Inventory: v.inventory, Kube: kube, Clock: clock.RealClock{}, KubeCluster: kubeCluster, Settings: defaults.InstanceSettings(),
	}, types, source, instance.Metrics{}), types, nil
}
