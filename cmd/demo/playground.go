// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet/terminal"
)

// playground keeps the setup running, prints how to use it, and reports events.
func playground(ctx context.Context, o options, stage *Stage, report *Reporter) error {
	if err := consolidateAfter(ctx, stage.Plane.Client, "15s"); err != nil {
		return err
	}
	ca := filepath.Join(o.dir, "proxmox-ca.pem")
	if err := os.WriteFile(ca, stage.Proxmox.CAPEM(), 0o600); err != nil {
		return fmt.Errorf("writing simulator CA: %w", err)
	}
	for _, l := range introduction(o, stage, ca) {
		report.screen.Print(l)
	}
	report.screen.Print(terminal.Text(""))
	report.screen.Print(terminal.Text("Status page of the simulated Proxmox VE: " + stage.Proxmox.AdminURL() + "/"))
	report.screen.Print(terminal.Text("Controller log: " + stage.Controller.Log()))
	report.screen.Print(terminal.Styled("Press Ctrl-C to stop. Events:", terminal.Bold))
	report.screen.Print(terminal.Text(""))
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	unexpected := make(chan error, 1)
	go func() {
		unexpected <- stage.waitForExit(watching)
		cancel()
	}()
	if guests := stage.Guests; guests != nil {
		go guests.watch(watching, stage.Plane.Client, func(node, login string) {
			if login == "" {
				login = "install the package openssh-client and start the playground again"
			}
			report.Event(terminal.Cyan, "to log in to %s: %s", node, login)
		})
	}
	NewWatch(stage, report).run(watching)
	return <-unexpected
}

// introduction returns commands to try. ca is the path of Proxmox's CA.
func introduction(o options, stage *Stage, ca string) []terminal.Line {
	kubectl := o.kubeplane + " kubectl"
	cluster := stage.Proxmox.Cluster(region)
	plugin := filepath.Join(filepath.Dir(o.kubeplane), "kubectl-proxmox")
	return []terminal.Line{
		terminal.Text(""),
		terminal.Styled("The playground is running. In another terminal:", terminal.Bold),
		terminal.Text(""),
		terminal.Styled("  export KUBECONFIG="+stage.Plane.Kubeconfig, terminal.Cyan),
		terminal.Styled("  alias kubectl='"+kubectl+"'", terminal.Cyan),
		terminal.Text(""),
		terminal.Styled("  # create pods that need new nodes: VMs are created", terminal.Dim),
		terminal.Styled(fmt.Sprintf("  kubectl create deployment web --image=registry.k8s.io/pause:3.10 --replicas=%d", stage.playgroundPods()), terminal.Cyan),
		terminal.Styled("  kubectl set resources deployment web --requests=cpu=1", terminal.Cyan),
		terminal.Styled("  kubectl get nodeclaims,nodes,pods -o wide", terminal.Cyan),
		terminal.Styled("  kubectl get proxmoxnodeclass demo -o yaml", terminal.Cyan),
		terminal.Styled("  # scale down: VMs are deleted", terminal.Dim),
		terminal.Styled("  kubectl scale deployment web --replicas=0", terminal.Cyan),
		terminal.Text(""),
		terminal.Styled("  # list the VMs in Proxmox", terminal.Dim),
		terminal.Styled(fmt.Sprintf("  curl -s --cacert %s -H 'Authorization: PVEAPIToken=%s=%s' '%s/cluster/resources?type=vm'", ca, cluster.TokenID, cluster.TokenSecret, cluster.URLs[0]), terminal.Cyan),
		terminal.Styled("  # power a host off and on", terminal.Dim),
		terminal.Styled(fmt.Sprintf("  curl -X POST %s/hosts/pve2/down", stage.Proxmox.AdminURL()), terminal.Cyan),
		terminal.Styled(fmt.Sprintf("  curl -X POST %s/hosts/pve2/up", stage.Proxmox.AdminURL()), terminal.Cyan),
		terminal.Text(""),
		terminal.Styled("  # the kubectl plugin: a live view of hosts, VMs and pods, and why a pod has no node", terminal.Dim),
		terminal.Styled(fmt.Sprintf("  %s top --cloud-config %s", plugin, stage.Controller.CloudConfig()), terminal.Cyan),
		terminal.Styled(fmt.Sprintf("  %s explain pod/NAME", plugin), terminal.Cyan),
	}
}
