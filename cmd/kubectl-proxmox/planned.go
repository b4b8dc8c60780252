// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/privileges"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// plannedClient is the client of a cluster in which the templates of the manifests exist
// already, so everything can be checked before they are built.
type plannedClient struct {
	proxmox.Client
	templates map[int]plannedTemplate
}

type plannedTemplate struct {
	row    proxmox.GuestRow
	config proxmox.VMConfig
}

// deniedClient is the client of a cluster in which the user has no privileges on some paths.
// Proxmox does not list them.
type deniedClient struct {
	proxmox.Client
	paths []string
}

// Permissions implements proxmox.Client.
func (c *deniedClient) Permissions(ctx context.Context) (proxmox.Permissions, error) {
	held, err := c.Client.Permissions(ctx)
	if err != nil {
		return held, err
	}
	for _, path := range c.paths {
		held.Deny(path)
	}
	return held, nil
}

// plan adds a template to the cluster and returns its VMID.
func (c *plannedClient) plan(snapshot *observed.Snapshot, desired template.Desired, location template.Location) int {
	vmid := firstPlannedVMID
	for snapshot.Guests[vmid].VMID != 0 || c.templates[vmid].row.VMID != 0 {
		vmid++
	}
	c.templates[vmid] = plannedTemplate{
		row: proxmox.GuestRow{
			VMID: vmid, Kind: proxmox.KindQEMU, Name: desired.Name, Host: location.Host, Status: "stopped", Template: true,
			Pool: desired.Spec.ResourcePool, CPUs: 1, MemoryBytes: 1 << 30,
		},
		config: template.PlannedConfig(desired, location),
	}
	return vmid
}

// firstPlannedVMID is the first VMID that the controller uses for templates by default.
const firstPlannedVMID = 1000

// Resources implements proxmox.Client.
func (c *plannedClient) Resources(ctx context.Context) (proxmox.Resources, error) {
	resources, err := c.Client.Resources(ctx)
	if err != nil {
		return resources, err
	}
	resources.Guests = slices.Clone(resources.Guests)
	for _, vmid := range slices.Sorted(maps.Keys(c.templates)) {
		resources.Guests = append(resources.Guests, c.templates[vmid].row)
	}
	return resources, nil
}

// VMConfig implements proxmox.Client.
func (c *plannedClient) VMConfig(ctx context.Context, host string, vmid int) (proxmox.VMConfig, error) {
	if planned, ok := c.templates[vmid]; ok {
		return planned.config, nil
	}
	return c.Client.VMConfig(ctx, host, vmid)
}

// Permissions implements proxmox.Client. The members of a resource pool have the
// privileges on it.
func (c *plannedClient) Permissions(ctx context.Context) (proxmox.Permissions, error) {
	held, err := c.Client.Permissions(ctx)
	if err != nil {
		return held, err
	}
	all := maps.Clone(held)
	for vmid, planned := range c.templates {
		if planned.row.Pool == "" {
			continue
		}
		path, pool := fmt.Sprintf("/vms/%d", vmid), "/pool/"+planned.row.Pool
		all[path] = map[string]bool{}
		for _, source := range []string{path, pool} {
			for privilege := range held[held.Source(source)] {
				if held.Has(source, privilege) {
					all[path][privilege] = false
				}
			}
		}
	}
	return all, nil
}

// generalize replaces the paths of planned templates, whose VMIDs are not known yet.
func (c *plannedClient) generalize(required []privileges.Required) []privileges.Required {
	var out []privileges.Required
	for _, r := range required {
		vmid, err := strconv.Atoi(strings.TrimPrefix(r.Path, "/vms/"))
		if planned, ok := c.templates[vmid]; err == nil && ok {
			out = append(out, privileges.OnVM(planned.row.Pool, r.Privilege)...)
			continue
		}
		out = append(out, r)
	}
	return out
}

// planTemplate plans a ProxmoxTemplate at its locations, and sets its status to the hosts
// whose VMs could be cloned from it.
func planTemplate(clients map[string]*plannedClient, view inventory.View, t *v1alpha1.ProxmoxTemplate, desired template.Desired, locations []template.Location) {
	for _, location := range locations {
		if location.Problem != "" || location.SpecProblem != "" || location.NetworkProblem != "" {
			continue
		}
		if location.Storage == "" { // invisible
			location.Storage = desired.Spec.StorageIDs[0]
		}
		snapshot := view.Snapshots[location.Region]
		vmid := clients[location.Region].plan(snapshot, desired, location)
		for _, host := range slices.Sorted(maps.Keys(snapshot.Hosts)) {
			isLocation := slices.ContainsFunc(locations, func(l template.Location) bool { return l.Region == location.Region && l.Host == host })
			if host != location.Host && (isLocation || !template.CanClone(snapshot, location.Host, template.PlannedConfig(desired, location), host)) {
				continue
			}
			zone := v1alpha1.TemplateZone{Region: location.Region, Host: host, VMID: vmid}
			t.Status.Zones = append(t.Status.Zones, zone.String())
		}
	}
}
