// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

func newHosts() *cobra.Command {
	from := &clusters{}
	command := &cobra.Command{
		Use:   "hosts",
		Short: "Show the total and free capacity of the hosts, as the controller calculates it",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			hosts, err := from.hosts(command.Context())
			if err != nil {
				return err
			}
			out := tabwriter.NewWriter(command.OutOrStdout(), 0, 0, 3, ' ', 0)
			_, _ = fmt.Fprintln(out, "REGION\tHOST\tCPUS\tFREE\tMEMORY\tFREE\tUNUSABLE BECAUSE")
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
