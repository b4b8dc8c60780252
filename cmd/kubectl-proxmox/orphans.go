// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
)

func newOrphans(cluster *kubeCluster) *cobra.Command {
	from := &clusters{}
	command := &cobra.Command{
		Use:   "orphans",
		Short: "Show orphaned objects and the commands to delete them",
		Long: `Show VMs, boot drives, join tokens and nodes of this Kubernetes cluster without a NodeClaim.

The controller deletes them after a minute (--orphan-grace-period), unless --orphan-policy is
report or the fraction of orphaned VMs exceeds --orphan-deletion-max-fraction. This
command deletes nothing.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			kube, _, err := cluster.connect()
			if err != nil {
				return err
			}
			system := &corev1.Namespace{}
			if err := kube.Get(command.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil {
				return fmt.Errorf("reading the UID of namespace %s, which identifies the VMs of this cluster: %w", metav1.NamespaceSystem, err)
			}
			view, err := from.read(command.Context())
			if err != nil {
				return err
			}
			tokens := &bootdata.Tokens{Client: kube}
			vms, _, err := view.operations(kube, boot.Source{Reader: kube, Tokens: tokens}, string(system.UID))
			if err != nil {
				return err
			}
			collector := garbagecollection.NewController(garbagecollection.Deps{
				Kube: kube, Reader: kube, VMs: vms.VMs, Deleter: vms.Deleter, Planner: vms.Planner, Inventory: view.inventory, Tokens: tokens, Clock: clock.RealClock{},
			})
			orphans, err := collector.Find(command.Context())
			if err != nil {
				return err
			}
			if len(orphans) == 0 {
				_, err = fmt.Fprintln(command.OutOrStdout(), "no orphans found")
				return err
			}
			out := tabwriter.NewWriter(command.OutOrStdout(), 0, 0, 3, ' ', 0)
			_, _ = fmt.Fprintln(out, "KIND\tNAME\tWHERE\tCOMMAND TO DELETE IT")
			for _, o := range orphans {
				_, _ = fmt.Fprintf(out, "%s\t%s\t%s\t%s\n", o.Kind, o.Name, o.Where, o.Command)
			}
			return out.Flush()
		},
	}
	from.flags(command)
	return command
}
