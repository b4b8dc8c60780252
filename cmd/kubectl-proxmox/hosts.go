// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// clusters are the Proxmox clusters that the user's files name, as the controller
// is given them.
type clusters struct{ cloudConfig, nodeSettings string }

func (c *clusters) flags(command *cobra.Command) {
	command.Flags().StringVar(&c.cloudConfig, "cloud-config", "", "path of the cloud config: the Proxmox clusters and their credentials (required)")
	command.Flags().StringVar(&c.nodeSettings, "node-setting-file", "", "path of the file with reserves and overcommit ratios of the hosts")
	_ = command.MarkFlagRequired("cloud-config")
}

// hosts reads every cluster once, as the controller counts it.
func (c *clusters) hosts(ctx context.Context) ([]inventory.HostState, error) {
	config, err := proxmox.LoadConfig(c.cloudConfig)
	if err != nil {
		return nil, err
	}
	options := inventory.Options{}
	if c.nodeSettings != "" {
		if options.Settings, err = inventory.LoadSettings(c.nodeSettings); err != nil {
			return nil, err
		}
	}
	var clients []proxmox.Client
	for _, cluster := range config.Clusters {
		client, err := proxmox.New(cluster, proxmox.Options{})
		if err != nil {
			return nil, err
		}
		if err := proxmox.Check(ctx, client); err != nil {
			return nil, err
		}
		clients = append(clients, client)
	}
	inv, err := inventory.New(clients, options)
	if err != nil {
		return nil, err
	}
	if err := inv.RefreshAll(ctx); err != nil {
		return nil, err
	}
	return inv.View().Hosts(), nil
}

func newHosts() *cobra.Command {
	from := &clusters{}
	command := &cobra.Command{
		Use:   "hosts",
		Short: "Show what the hosts have and have left, as the controller counts it",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			hosts, err := from.hosts(command.Context())
			if err != nil {
				return err
			}
			out := tabwriter.NewWriter(command.OutOrStdout(), 0, 0, 3, ' ', 0)
			_, _ = fmt.Fprintln(out, "REGION\tHOST\tCPUS\tFREE\tMEMORY\tFREE\tTAKES NO VM BECAUSE")
			for _, host := range hosts {
				_, _ = fmt.Fprintf(out, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", host.Region, host.Name,
					host.Allocatable.CPUs, host.Free.CPUs, gib(host.Allocatable.MemoryBytes), gib(host.Free.MemoryBytes), host.Unusable)
			}
			return out.Flush()
		},
	}
	from.flags(command)
	return command
}

func newInstanceTypes() *cobra.Command {
	from := &clusters{}
	command := &cobra.Command{
		Use:   "instance-types",
		Short: "Write a file of instance types that fit the hosts, for --instance-types-file",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			hosts, err := from.hosts(command.Context())
			if err != nil {
				return err
			}
			var sizes []inventory.Amount
			for _, host := range hosts {
				sizes = append(sizes, host.Allocatable)
			}
			file, err := instancetype.Generate(sizes).Encode()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(command.OutOrStdout(), string(file))
			return err
		},
	}
	from.flags(command)
	return command
}

func gib(bytes int64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }
