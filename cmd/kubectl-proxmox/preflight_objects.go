// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/unmanagedtemplate"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/privileges"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// checkObjects checks the templates and NodeClasses of the manifests. If there are none, it
// checks the privileges that every NodeClass needs. The privileges are printed first, since
// other checks can depend on them. If Proxmox denies some that it seemed to grant, objects
// were invisible, so all checks run again.
func (p *preflight) checkObjects(ctx context.Context, objects *manifests) error {
	view, failed := p.view, p.failed
	details, err := p.collect(ctx, objects)
	if err != nil {
		return err
	}
	denied, err := p.findDenied(ctx)
	if err != nil {
		return err
	}
	if len(denied) > 0 {
		p.failed = failed
		if objects, err = readManifests(p.manifests, p.namespace); err != nil {
			return err
		}
		if p.view, err = view.replace(ctx, denied, objects.facts()); err != nil {
			return err
		}
		if details, err = p.collect(ctx, objects); err != nil {
			return err
		}
	}
	if len(p.manifests) > 0 && !objects.hasOwnKinds() {
		p.fail("the manifests contain no ProxmoxNodeClass and no template")
	}
	p.privileges()
	_, err = io.Copy(p.out, details)
	return err
}

// findDenied returns clients with the paths that Proxmox denies of those that seem to
// inherit the required privileges; nil if there are none.
func (p *preflight) findDenied(ctx context.Context) ([]proxmox.Client, error) {
	clients := make([]proxmox.Client, 0, len(p.view.clients))
	found := false
	for _, client := range p.view.clients {
		denied := &deniedClient{Client: client}
		if planned, ok := client.(*plannedClient); ok {
			denied.Client = planned.Client
		}
		if required := p.required[client.Region()]; len(required) > 0 {
			account := privileges.NewAccount(p.view.inventory.View().Snapshots[client.Region()].Facts)
			for _, path := range account.InheritedPaths(required) {
				ok, err := client.HasAccess(ctx, path)
				if err != nil {
					return nil, err
				}
				if !ok {
					denied.paths, found = append(denied.paths, path), true
				}
			}
		}
		clients = append(clients, denied)
	}
	if !found {
		return nil, nil
	}
	return clients, nil
}

// collect runs all checks and returns what they print. It sets p.required and p.pools.
func (p *preflight) collect(ctx context.Context, objects *manifests) (*bytes.Buffer, error) {
	out, details := p.out, &bytes.Buffer{}
	p.out = details
	defer func() { p.out = out }()
	p.required, p.pools = map[string][]privileges.Required{}, map[string]string{}
	classes := objects.nodeClasses()
	if err := p.templates(ctx, objects, classes); err != nil {
		return nil, err
	}
	source := boot.Source{Reader: objects, Namespace: p.namespace, Version: boot.FixedVersion(p.version)}
	vms, types, err := p.view.operations(nil, source, "")
	if err != nil {
		return nil, err
	}
	checker := nodeclass.NewChecker(objects, nodeclass.Deps{
		Inventory: p.view.inventory, Types: types, RootClients: p.view.roots, Boot: source, Health: vms.Health, Clock: clock.RealClock{},
	})
	for _, class := range classes {
		if err := p.class(ctx, checker, objects, class); err != nil {
			return nil, err
		}
	}
	if len(p.required) == 0 {
		p.anyClass()
	}
	return details, nil
}

// templates checks whether the managed templates can be built, and resolves the unmanaged
// ones. The view then contains the managed templates as if they were built.
func (p *preflight) templates(ctx context.Context, objects *manifests, classes []*v1alpha1.ProxmoxNodeClass) error {
	clients := map[string]*plannedClient{}
	planned := make([]proxmox.Client, 0, len(p.view.clients))
	for _, client := range p.view.clients {
		clients[client.Region()] = &plannedClient{Client: client, templates: map[int]plannedTemplate{}}
		planned = append(planned, clients[client.Region()])
	}
	all := make([]v1alpha1.ProxmoxNodeClass, 0, len(classes))
	for _, class := range classes {
		all = append(all, *class)
	}
	for _, object := range objects.objects {
		if t, ok := object.(*v1alpha1.ProxmoxTemplate); ok {
			problem := p.preparation(ctx, objects, t)
			desired := template.NewDesired(t, all)
			locations := template.NewRollout(p.view.inventory.View(), "", desired).Locations
			p.template(t, locations, problem)
			planTemplate(clients, p.view.inventory.View(), t, desired, locations)
		}
	}
	var err error
	if p.view, err = p.view.replace(ctx, planned, objects.facts()); err != nil {
		return err
	}
	for _, object := range objects.objects {
		if t, ok := object.(*v1alpha1.ProxmoxUnmanagedTemplate); ok {
			unmanagedtemplate.Resolve(p.view.inventory, t)
			p.unmanaged(t, all)
		}
	}
	return nil
}

// preparation returns why the boot data of a template's builder VMs cannot be used.
func (p *preflight) preparation(ctx context.Context, objects *manifests, t *v1alpha1.ProxmoxTemplate) error {
	if t.Spec.Prepare == nil {
		return nil
	}
	_, err := boot.Source{Reader: objects, Namespace: p.namespace, Version: boot.FixedVersion(p.version)}.CheckPreparation(ctx, t)
	return err
}

// template prints the hosts on which a template can be built, and the problems of the
// others, each once.
func (p *preflight) template(t *v1alpha1.ProxmoxTemplate, locations []template.Location, preparation error) {
	fmt.Fprintf(p.out, "\nProxmoxTemplate %s\n", t.Name)
	if preparation != nil {
		p.fail("%v", preparation)
	}
	if _, err := template.NewImage(t.Spec.SourceImage, ""); err != nil && !errors.Is(err, template.ErrChecksumUnresolved) {
		p.fail("%v", err)
	}
	if known := p.view.inventory.Regions(); t.Spec.Region != "" && !slices.Contains(known, t.Spec.Region) {
		p.fail("%s", template.UnknownRegion(t.Spec.Region, known))
	}
	var problems []v1alpha1.UnusableZone
	for _, location := range locations {
		zone := location.Region + "/" + location.Host
		p.required[location.Region] = append(p.required[location.Region], location.Required...)
		found := false
		for _, problem := range []string{location.Problem, location.SpecProblem, location.NetworkProblem} {
			if problem != "" && p.isOnline(location) {
				found = true
				problems = append(problems, v1alpha1.UnusableZone{Zone: zone, Reason: problem})
			}
		}
		switch {
		case found:
		case !p.isOnline(location):
			p.printf("skip", "host %s is offline", zone)
		case location.MissingPrivileges != "":
			p.printf("skip", "host %s: privileges are missing, see above", zone)
		default:
			p.ok("host %s: storage %s for the image, storage %s for the template", zone, location.Images, location.Storage)
		}
	}
	for _, same := range group(problems, func(zone v1alpha1.UnusableZone) string { return zone.Reason }) {
		p.fail("%s: %s", zoneNames(same), same[0].Reason)
	}
}

// unmanaged prints whether an unmanaged template exists, unless the check of a class does.
func (p *preflight) unmanaged(t *v1alpha1.ProxmoxUnmanagedTemplate, classes []v1alpha1.ProxmoxNodeClass) {
	if slices.ContainsFunc(classes, func(class v1alpha1.ProxmoxNodeClass) bool {
		return class.Spec.InstanceTemplateRef.Kind == v1alpha1.ProxmoxUnmanagedTemplateKind && class.Spec.InstanceTemplateRef.Name == t.Name
	}) {
		return
	}
	fmt.Fprintf(p.out, "\nProxmoxUnmanagedTemplate %s\n", t.Name)
	if ready := t.StatusConditions().Get(v1alpha1.ConditionTemplateReady); !ready.IsTrue() {
		p.fail("%s", ready.Message)
		return
	}
	p.ok("found on %s", strings.Join(t.Status.Zones, ", "))
}

func (p *preflight) isOnline(location template.Location) bool {
	return p.view.inventory.View().Snapshots[location.Region].IsOnline(location.Host)
}

// class checks a class twice, with a poll in between: the first check determines which
// additional facts the inventory reads.
func (p *preflight) class(ctx context.Context, checker *nodeclass.Checker, objects *manifests, class *v1alpha1.ProxmoxNodeClass) error {
	skip := func(region, host string) bool {
		return p.isExcluded(region, host) || objects.cannotBuild(class.Spec.InstanceTemplateRef, region, host)
	}
	if _, err := checker.Find(ctx, class, skip); err != nil {
		return err
	}
	_ = p.view.inventory.RefreshAll(ctx) // clusters has already printed unreachable ones
	if err := checker.Check(ctx, class); err != nil {
		return err
	}
	found, err := checker.Find(ctx, class, skip)
	if err != nil {
		return err
	}
	for _, client := range p.view.clients {
		if planned, ok := client.(*plannedClient); ok && len(found.Required[client.Region()]) > 0 {
			p.required[client.Region()] = append(p.required[client.Region()], planned.generalize(found.Required[client.Region()])...)
		}
	}
	fmt.Fprintf(p.out, "\nProxmoxNodeClass %s\n", class.Name)
	for _, condition := range class.StatusConditions().List() {
		p.condition(condition, found)
	}
	return nil
}

// condition prints a condition of a class: the problems of hosts, each once, or else the
// condition itself. Conditions of hosts that were not checked have been reported elsewhere.
func (p *preflight) condition(condition status.Condition, found nodeclass.Findings) {
	problems, checked := found.Problems[condition.Type]
	for _, problem := range problems {
		p.fail("%s: %s", condition.Type, problem)
	}
	text := condition.Type
	if condition.Message != "" {
		text += ": " + condition.Message
	}
	switch {
	case condition.Type == status.ConditionReady, condition.Type == v1alpha1.ConditionPrivilegesSufficient, len(problems) > 0:
	case checked:
		p.ok("%s", condition.Type)
	case condition.IsTrue():
		p.ok("%s", text)
	case condition.IsFalse() && !nodeclass.IsHostCondition(condition.Type) && condition.Reason != v1alpha1.ReasonClustersUnreachable && condition.Reason != v1alpha1.ReasonNoQuorum:
		p.fail("%s", text)
	default:
		p.printf("skip", "%s", text)
	}
}

// anyClass determines the privileges that every NodeClass requires. A token that may create
// VMs only in a resource pool is checked for VMs in it.
func (p *preflight) anyClass() {
	view := p.view.inventory.View()
	for region, snapshot := range view.Snapshots {
		if snapshot.Facts == nil {
			p.fail("PrivilegesSufficient: region %s: the privileges of the account could not be read in time; run the command again", region)
			continue
		}
		account := privileges.NewAccount(snapshot.Facts)
		for n, pool := range append([]string{""}, account.SuitablePools()...) {
			required := p.requiredIn(snapshot, pool)
			if n == 0 || len(account.Missing(required)) < len(account.Missing(p.required[region])) {
				p.required[region], p.pools[region] = required, pool
			}
		}
	}
}

// requiredIn returns the privileges for VMs in a resource pool, or without one.
func (p *preflight) requiredIn(snapshot *observed.Snapshot, pool string) []privileges.Required {
	class := &v1alpha1.ProxmoxNodeClass{Spec: v1alpha1.ProxmoxNodeClassSpec{
		ResourcePool: pool, MetadataOptions: v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeCDROM},
	}}
	var required []privileges.Required
	for _, host := range slices.Sorted(maps.Keys(snapshot.Hosts)) {
		if p.isExcluded(snapshot.Region, host) || !snapshot.IsOnline(host) {
			continue
		}
		vm := privileges.VM{Class: class, Snapshot: snapshot, Host: host}
		if storage, err := placement.ISOStorage(snapshot, host, "", ""); err == nil {
			vm.BootDriveStorage = storage
		}
		required = append(required, privileges.ForAnyNodeClass(vm)...)
	}
	return required
}
