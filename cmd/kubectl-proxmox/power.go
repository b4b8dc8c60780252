// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	templatebuild "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/build"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// hostPower is a host in the output of power.
type hostPower struct {
	Region string `json:"region"`
	Host   string `json:"host"`
	// State is Awake, ShuttingDown, Asleep, Waking or Offline.
	State string `json:"state"`
	// Energy is estimated; zero if the host is off.
	Energy declared.Energy `json:"energy"`
	// Saved is the energy without load of a host that is off to save energy.
	Saved declared.Energy `json:"saved,omitzero"`
	// Sleep is true if the host could be shut down. Otherwise Reasons keep it awake.
	Sleep   bool          `json:"sleep"`
	Reasons []powerReason `json:"reasons,omitempty"`
}

type powerReason struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

func newPower(cluster *kubeCluster) *cobra.Command {
	from, format := &clusters{}, &output{}
	command := &cobra.Command{
		Use:   "power",
		Short: "Show which hosts could be shut down to save energy, and what keeps the others awake",
		Long: `Show the hosts that take part in power management (powermanagement in the host settings),
their estimated power, and everything that keeps them awake. How long a host is idle is not
considered: only the controller knows it. Nothing is changed.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			kube, _, err := cluster.connect()
			if err != nil {
				return err
			}
			v, err := from.readReachable(command.Context())
			if err != nil {
				return err
			}
			rows, err := v.readPower(command.Context(), kube)
			if err != nil {
				return err
			}
			if v.unread != nil && len(rows) == 0 {
				return v.unread // hosts that could not be read may take part
			}
			err = format.print(command.OutOrStdout(), rows, func(out io.Writer) error { return printPower(out, rows) })
			return errors.Join(err, v.unread)
		},
	}
	from.flagsOr(cluster, command)
	format.flags(command)
	return command
}

// readPower decides about the hosts that take part in power management.
func (v *view) readPower(ctx context.Context, kube client.Client) ([]hostPower, error) {
	id, err := clusterID(ctx, kube)
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
	pending, err := templatebuild.HostsToKeepAwake(ctx, kube, template.NewProvider(template.Deps{Inventory: v.inventory, Clock: clock.RealClock{}, KubeCluster: id}))
	if err != nil {
		return nil, err
	}
	rows, now := []hostPower{}, time.Now()
	view := v.inventory.View()
	current := view.WithReservations(fleet.Reservations(view, id, claims.Items)...)
	for _, c := range v.clients {
		hosts := power.EnrolledHosts(current, c.Region())
		if len(hosts) == 0 && !slices.ContainsFunc(current.Hosts(), func(host inventory.HostState) bool { return host.Region == c.Region() && host.Sleep != "" }) {
			continue
		}
		region := power.NewRegion(power.Source{
			View: current, Region: c.Region(), KubeCluster: id, Now: now,
			Facts:     power.ReadFacts(ctx, c, current.Snapshots[c.Region()].Version, hosts),
			IdleSince: func(string) time.Time { return now.AddDate(-1, 0, 0) }, PendingTemplates: pending,
		})
		states := map[string]power.Host{}
		for _, host := range region.Hosts {
			states[host.Name] = host
		}
		for _, decision := range power.Decide(region) {
			row := hostPower{Region: c.Region(), Host: decision.Host, State: string(states[decision.Host].State), Sleep: decision.Action == power.Sleep}
			row.Energy, row.Saved = states[decision.Host].Energy()
			for _, reason := range decision.Reasons {
				row.Reasons = append(row.Reasons, powerReason{string(reason.Type), reason.Message})
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// printPower prints a line for each reason, and the sum.
func printPower(out io.Writer, rows []hostPower) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(out, `no host takes part in power management: set "powermanagement": "Report" in the host settings`)
		return err
	}
	var possible, saved declared.Energy
	err := table(out, "REGION\tHOST\tWATTS\tCOULD SLEEP\tAWAKE BECAUSE", func(out io.Writer) {
		for _, row := range rows {
			saved = saved.Plus(row.Saved)
			switch {
			case row.Sleep:
				possible = possible.Plus(row.Energy)
				fmt.Fprintf(out, "%s\t%s\t%.0f\tyes\t\n", row.Region, row.Host, row.Energy.Watts)
			case len(row.Reasons) == 0:
				fmt.Fprintf(out, "%s\t%s\t%.0f\tis asleep\t\n", row.Region, row.Host, row.Energy.Watts)
			}
			for n, reason := range row.Reasons {
				if n == 0 {
					fmt.Fprintf(out, "%s\t%s\t%.0f\tno\t%s: %s\n", row.Region, row.Host, row.Energy.Watts, reason.Type, reason.Message)
				} else {
					fmt.Fprintf(out, "\t\t\t\t%s: %s\n", reason.Type, reason.Message)
				}
			}
		}
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "saved by sleeping hosts: %s\npossible savings: %s\n", saved, possible)
	return err
}
