// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
)

// orphan is an orphan in the output of orphans.
type orphan struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Where   string `json:"where"`
	Command string `json:"command"`
}

func newOrphans(cluster *kubeCluster) *cobra.Command {
	from, format := &clusters{}, &output{}
	command := &cobra.Command{
		Use:   "orphans",
		Short: "Show orphaned objects and the commands to delete them",
		Long: `Show VMs, boot drives, join tokens and nodes of this Kubernetes cluster without a NodeClaim. To
delete a VM with its boot drive, run both commands, that of the VM first.

The controller deletes them after 15 minutes (--orphan-grace-period), unless --orphan-policy is
report or the fraction of orphaned VMs exceeds --orphan-deletion-max-fraction. This
command deletes nothing.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			kube, _, err := cluster.connect()
			if err != nil {
				return err
			}
			id, err := clusterID(command.Context(), kube)
			if err != nil {
				return err
			}
			view, err := from.readReachable(command.Context())
			if err != nil {
				return err
			}
			tokens := &bootdata.Tokens{Client: kube}
			vms, _, err := view.operations(kube, boot.Source{Reader: kube, Tokens: tokens}, id)
			if err != nil {
				return err
			}
			collector := garbagecollection.NewController(garbagecollection.Deps{
				Kube: kube, Reader: kube, VMs: vms.VMs, Deleter: vms.Deleter, Planner: vms.Planner, Inventory: view.inventory, Tokens: tokens, Clock: clock.RealClock{},
			})
			orphans, incomplete := collector.Find(command.Context())
			incomplete = errors.Join(view.unread, incomplete)
			if incomplete != nil && len(orphans) == 0 {
				return incomplete
			}
			rows := []orphan{}
			for _, o := range orphans {
				rows = append(rows, orphan{o.Kind, o.Name, o.Where, o.Command})
			}
			err = printRows(format, command.OutOrStdout(), rows, "no orphans found", "KIND\tNAME\tWHERE\tCOMMAND TO DELETE IT", func(o orphan) string {
				return fmt.Sprintf("%s\t%s\t%s\t%s", o.Kind, o.Name, o.Where, o.Command)
			})
			if incomplete != nil {
				err = errors.Join(err, fmt.Errorf("the list is incomplete: %w", incomplete))
			}
			return err
		},
	}
	from.flagsOr(cluster, command)
	format.flags(command)
	return command
}
