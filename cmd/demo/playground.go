// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
	report.screen.Print(text(""))
	report.screen.Print(text("Status page of the simulated Proxmox VE: " + stage.Proxmox.AdminURL() + "/"))
	report.screen.Print(text("Controller log: " + stage.Controller.Log()))
	report.screen.Print(styled("Press Ctrl-C to stop. Events:", bold))
	report.screen.Print(text(""))
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
			report.Event(cyan, "to log in to %s: %s", node, login)
		})
	}
	NewWatch(stage, report).run(watching)
	return <-unexpected
}

// introduction returns commands to try. ca is the path of Proxmox's CA.
func introduction(o options, stage *Stage, ca string) []line {
	kubectl := o.kubeplane + " kubectl"
	cluster := stage.Proxmox.Cluster(region)
	plugin := filepath.Join(filepath.Dir(o.kubeplane), "kubectl-proxmox")
	return []line{
		text(""),
		styled("The playground is running. In another terminal:", bold),
		text(""),
		styled("  export KUBECONFIG="+stage.Plane.Kubeconfig, cyan),
		styled("  alias kubectl='"+kubectl+"'", cyan),
		text(""),
		styled("  # create pods that need new nodes: VMs are created", dim),
		styled(fmt.Sprintf("  kubectl create deployment web --image=registry.k8s.io/pause:3.10 --replicas=%d", stage.playgroundPods()), cyan),
		styled("  kubectl set resources deployment web --requests=cpu=1", cyan),
		styled("  kubectl get nodeclaims,nodes,pods -o wide", cyan),
		styled("  kubectl get proxmoxnodeclass demo -o yaml", cyan),
		styled("  # scale down: VMs are deleted", dim),
		styled("  kubectl scale deployment web --replicas=0", cyan),
		text(""),
		styled("  # list the VMs in Proxmox", dim),
		styled(fmt.Sprintf("  curl -s --cacert %s -H 'Authorization: PVEAPIToken=%s=%s' '%s/cluster/resources?type=vm'", ca, cluster.TokenID, cluster.TokenSecret, cluster.URLs[0]), cyan),
		styled("  # power a host off and on", dim),
		styled(fmt.Sprintf("  curl -X POST %s/hosts/pve2/down", stage.Proxmox.AdminURL()), cyan),
		styled(fmt.Sprintf("  curl -X POST %s/hosts/pve2/up", stage.Proxmox.AdminURL()), cyan),
		text(""),
		styled("  # the kubectl plugin: capacity of the hosts, and why a pod has no node", dim),
		styled(fmt.Sprintf("  %s hosts --cloud-config %s", plugin, stage.Controller.CloudConfig()), cyan),
		styled(fmt.Sprintf("  %s explain pod/NAME", plugin), cyan),
	}
}
