// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/privileges"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// preflight runs the controller's checks without a controller.
type preflight struct {
	from      *clusters
	manifests []string
	version   string
	namespace string

	view *view
	out  io.Writer
	// required are the privileges that the manifests require, by region.
	required map[string][]privileges.Required
	// pools are the resource pools that VMs must be in, by region, if no manifests name them.
	pools map[string]string
	// failed is the number of failed checks.
	failed int
}

func newPreflight(cluster *kubeCluster) *cobra.Command {
	p := &preflight{from: &clusters{}}
	command := &cobra.Command{
		Use:   "preflight",
		Short: "Check Proxmox clusters and manifests before anything is installed",
		Long: `Check Proxmox clusters and manifests before anything is installed.

Checks that each cluster is reachable, that its certificate is trusted and that the
token is valid and has the required privileges. With -f it also checks, for each
ProxmoxTemplate and ProxmoxNodeClass in the manifests and each host: template, storages,
bridges, security groups, tags, resource pool, boot data and capacity. A template that
does not exist yet is checked as if it did. The checks are the same as the controller's.
Nothing is changed in Proxmox, and no Kubernetes cluster is needed.

A check fails if one host does not pass it. To use only some hosts, exclude the others in
the file of --node-setting-file.`,
		Example: `  # before helm
  kubectl proxmox preflight --values values.yaml

  # before kubectl apply
  kubectl proxmox preflight --values values.yaml -f template.yaml,secrets.yaml,pool.yaml`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			p.out = command.OutOrStdout()
			return p.run(command.Context())
		},
	}
	p.from.flags(cluster, command)
	command.Flags().StringSliceVarP(&p.manifests, "filename", "f", nil, "manifests to check: files, or directories of YAML and JSON files")
	command.Flags().StringVar(&p.version, "kubernetes-version", "v1.36.3", "version of Kubernetes that boot data is rendered for")
	command.Flags().StringVar(&p.namespace, "system-namespace", metav1.NamespaceSystem, "namespace that boot data is rendered for")
	return command
}

func (p *preflight) run(ctx context.Context) error {
	objects, err := readManifests(p.manifests, p.namespace)
	if err != nil {
		return err
	}
	if p.view, err = p.from.open(); err != nil {
		return err
	}
	if p.clusters(ctx, objects) {
		if err := p.checkObjects(ctx, objects); err != nil {
			return err
		}
	}
	if p.failed > 0 {
		return fmt.Errorf("failed checks: %d, see the lines with FAIL", p.failed)
	}
	return nil
}

// clusters polls each cluster and reports whether at least one is usable.
func (p *preflight) clusters(ctx context.Context, objects *manifests) bool {
	usable := 0
	for _, client := range p.view.clients {
		p.view.inventory.Invalidate(client.Region(), objects.facts()...)
		err := proxmox.Check(ctx, client)
		if err == nil {
			err = p.view.inventory.Refresh(ctx, client.Region())
		}
		if err != nil {
			p.fail("%v", err)
			continue
		}
		usable++
		snapshot := p.view.inventory.View().Snapshots[client.Region()]
		p.ok("region %s: Proxmox VE %s is reachable; hosts: %d, guests: %d", client.Region(), snapshot.Version.Full, len(snapshot.Hosts), len(snapshot.Guests))
	}
	for _, host := range p.view.inventory.View().Hosts() {
		switch why := host.Obstacle(inventory.Launch); why.Reason {
		case "":
			p.ok("host %s/%s: %d of %d CPUs and %s of %s memory are free", host.Region, host.Name,
				host.Free.CPUs, host.Allocatable.CPUs, gib(host.Free.MemoryBytes), gib(host.Allocatable.MemoryBytes))
		case inventory.Excluded:
			p.printf("skip", "host %s/%s is %s", host.Region, host.Name, why.Message)
		case inventory.SizeUnknown:
			p.printf("skip", "host %s/%s: its capacity is not visible without Sys.Audit", host.Region, host.Name)
		default:
			p.fail("host %s/%s is not usable: %s", host.Region, host.Name, why.Message)
		}
	}
	p.power()
	return usable > 0
}

// power prints whether the token may read what keeps the hosts awake that take part in power
// management.
func (p *preflight) power() {
	view := p.view.inventory.View()
	for _, region := range slices.Sorted(maps.Keys(view.Snapshots)) {
		facts, hosts := view.Snapshots[region].Facts, power.EnrolledHosts(view, region)
		if len(hosts) == 0 || facts == nil {
			continue
		}
		missing := power.MissingPrivileges(facts.Permissions)
		for _, host := range hosts {
			if state, _ := view.Host(region, host); state.Power.Mode == declared.PowerEnabled {
				if lacked := power.MissingToShutDown(facts.Permissions, host); lacked != "" {
					missing = append(missing, lacked)
				}
			}
		}
		if len(missing) > 0 {
			p.fail("power management: region %s: %s lacks %s", region, privileges.NewAccount(facts), strings.Join(missing, ", "))
			continue
		}
		p.ok("power management: region %s: hosts that take part: %s", region, strings.Join(hosts, ", "))
	}
}

// isExcluded reports whether the host settings exclude a host.
func (p *preflight) isExcluded(region, host string) bool {
	state, _ := p.view.inventory.View().Host(region, host)
	return state.Has(inventory.Excluded)
}

// privileges prints for each region which of the required privileges are missing, with one
// command for all manifests and hosts.
func (p *preflight) privileges() {
	view := p.view.inventory.View()
	for _, region := range slices.Sorted(maps.Keys(p.required)) {
		account := privileges.NewAccount(view.Snapshots[region].Facts)
		if message := account.Message(p.required[region]); message != "" {
			p.fail("PrivilegesSufficient: region %s: %s", region, message)
			continue
		}
		if pool := p.pools[region]; pool != "" {
			p.ok("PrivilegesSufficient: region %s: %s has all required privileges for VMs in resource pool %s; set spec.resourcePool to it in each NodeClass", region, account, pool)
			continue
		}
		p.ok("PrivilegesSufficient: region %s: %s has all required privileges", region, account)
	}
}

func (p *preflight) ok(format string, args ...any) { p.printf("ok", format, args...) }

func (p *preflight) fail(format string, args ...any) {
	p.failed++
	p.printf("FAIL", format, args...)
}

func (p *preflight) printf(result, format string, args ...any) {
	fmt.Fprintf(p.out, "%-5s  %s\n", result, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
}
