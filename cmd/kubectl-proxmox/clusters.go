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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// clusters are the Proxmox clusters that the user's files name, as the controller
// is given them.
type clusters struct{ cloudConfig, values, nodeSettings string }

func (c *clusters) flags(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&c.cloudConfig, "cloud-config", "", "path of the cloud config: the Proxmox clusters and their credentials")
	flags.StringVar(&c.values, "values", "", "path of the chart's values instead, with the same under config")
	flags.StringVar(&c.nodeSettings, "node-setting-file", "", "path of the file with reserves and overcommit ratios of the hosts")
	command.MarkFlagsOneRequired("cloud-config", "values")
	command.MarkFlagsMutuallyExclusive("cloud-config", "values")
}

func (c *clusters) config() (proxmox.Config, error) {
	if c.values == "" {
		return proxmox.LoadConfig(c.cloudConfig)
	}
	content, err := os.ReadFile(c.values)
	if err != nil {
		return proxmox.Config{}, fmt.Errorf("reading the chart's values, %w", err)
	}
	var values struct {
		Config map[string]any `json:"config"`
	}
	if err := yaml.Unmarshal(content, &values); err != nil {
		return proxmox.Config{}, fmt.Errorf("reading the chart's values %s, %w", c.values, err)
	}
	if content, err = yaml.Marshal(values.Config); err != nil {
		return proxmox.Config{}, fmt.Errorf("reading the chart's values %s, %w", c.values, err)
	}
	config, err := proxmox.ParseConfig(content)
	if err != nil {
		return config, fmt.Errorf("reading config of the chart's values %s, %w", c.values, err)
	}
	return config, nil
}

// view is what the controller would know of the clusters. It asks nobody before a
// refresh of its inventory.
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

// read opens the clusters and reads each once; all of them must answer.
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

// hosts reads every cluster once, as the controller counts it.
func (c *clusters) hosts(ctx context.Context) ([]inventory.HostState, error) {
	v, err := c.read(ctx)
	if err != nil {
		return nil, err
	}
	return v.inventory.View().Hosts(), nil
}

// operations returns the operations on the VMs of a Kubernetes cluster, with the
// controller's defaults.
func (v *view) operations(kube client.Client, source boot.Source, kubeCluster string) (*operations.Operations, *instancetype.Provider, error) {
	types, err := instancetype.New(instancetype.Deps{Inventory: v.inventory, Catalog: instancetype.DefaultCatalog(), Clock: clock.RealClock{}})
	if err != nil {
		return nil, nil, err
	}
	clients := map[string]proxmox.Client{}
	for _, c := range v.clients {
		clients[c.Region()] = c
	}
	return operations.New(instance.Deps{
		Clients: clients, Inventory: v.inventory, Kube: kube, Clock: clock.RealClock{}, KubeCluster: kubeCluster, Settings: instance.DefaultSettings(),
	}, types, source, instance.Metrics{}), types, nil
}
