// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// hostCapacity is a host in the output of hosts.
type hostCapacity struct {
	Region          string `json:"region"`
	Host            string `json:"host"`
	CPUs            int    `json:"cpus"`
	FreeCPUs        int    `json:"freeCPUs"`
	MemoryBytes     int64  `json:"memoryBytes"`
	FreeMemoryBytes int64  `json:"freeMemoryBytes"`
	// Unusable is why the host accepts no new VMs.
	Unusable string `json:"unusable,omitempty"`
}

func newHosts(cluster *kubeCluster) *cobra.Command {
	from, format := &clusters{}, &output{}
	command := &cobra.Command{
		Use:   "hosts",
		Short: "Show the total and free capacity of the hosts, as the controller calculates it",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			v, err := from.readReachable(command.Context())
			if err != nil {
				return err
			}
			hosts, err := readHosts(command.Context(), from, v)
			if err != nil {
				return err
			}
			rows := []hostCapacity{}
			for _, host := range hosts {
				rows = append(rows, hostCapacity{
					Region: host.Region, Host: host.Name, CPUs: host.Allocatable.CPUs, FreeCPUs: host.Free.CPUs,
					MemoryBytes: host.Allocatable.MemoryBytes, FreeMemoryBytes: host.Free.MemoryBytes, Unusable: host.Obstacle(inventory.Launch).Message,
				})
			}
			const header = "REGION\tHOST\tCPUS\tFREE CPUS\tMEMORY\tFREE MEMORY\tUNUSABLE BECAUSE"
			err = printRows(format, command.OutOrStdout(), rows, "no host found", header, func(r hostCapacity) string {
				return fmt.Sprintf("%s\t%s\t%d\t%d\t%s\t%s\t%s", r.Region, r.Host, r.CPUs, r.FreeCPUs, gib(r.MemoryBytes), gib(r.FreeMemoryBytes), r.Unusable)
			})
			return errors.Join(err, v.unread)
		},
	}
	from.flagsOr(cluster, command)
	format.flags(command)
	return command
}

// readHosts returns the hosts of a view with their free capacity. With the settings of the controller in
// the cluster, also its maintenance and its launches in progress count.
func readHosts(ctx context.Context, from *clusters, v *view) ([]inventory.HostState, error) {
	if from.cloudConfig != "" || from.values != "" {
		return v.inventory.View().Hosts(), nil
	}
	kube, _, err := from.cluster.connect()
	if err != nil {
		return nil, err
	}
	if err := v.readHostStates(ctx, kube); err != nil {
		return nil, err
	}
	claims := &karpv1.NodeClaimList{}
	if err := kube.List(ctx, claims); err != nil {
		return nil, fmt.Errorf("listing NodeClaims: %w", err)
	}
	id, err := clusterID(ctx, kube)
	if err != nil {
		return nil, err
	}
	view := v.inventory.View()
	return view.WithReservations(fleet.Reservations(view, id, claims.Items)...).Hosts(), nil
}

func newInstanceTypes(cluster *kubeCluster) *cobra.Command {
	from := &clusters{}
	command := &cobra.Command{
		Use:   "instance-types",
		Short: "Write a file of instance types that fit the hosts, for --instance-types-file",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			v, err := from.readReachable(command.Context())
			if err != nil {
				return err
			}
			var sizes []observed.Amount
			for _, host := range v.inventory.View().Hosts() {
				sizes = append(sizes, host.Allocatable)
			}
			file, err := instancetype.Generate(sizes).Encode()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(command.OutOrStdout(), string(file))
			return errors.Join(err, v.unread)
		},
	}
	from.flagsOr(cluster, command)
	return command
}

func gib(bytes int64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }
