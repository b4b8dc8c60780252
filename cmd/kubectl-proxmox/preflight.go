// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	nodeclassstatus "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass/status"
	unmanagedstatus "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/unmanagedtemplate/status"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// preflight runs the controller's checks without a controller.
type preflight struct {
	from      *clusters
	manifests []string
	version   string
	namespace string

	view *view
	out  io.Writer
	// failed is the number of failed checks.
	failed int
}

func newPreflight() *cobra.Command {
	p := &preflight{from: &clusters{}}
	command := &cobra.Command{
		Use:   "preflight",
		Short: "Check Proxmox clusters and manifests before anything is installed",
		Long: `Check Proxmox clusters and manifests before anything is installed.

Checks that each cluster is reachable, that its certificate is trusted and that the
token is valid and has the required privileges. With -f it also checks, for each
ProxmoxNodeClass in the manifests and each host: template, storages, bridges, security
groups, tags, resource pool, boot data and capacity. The checks are the same as the
controller's. Nothing is changed in Proxmox, and no Kubernetes cluster is needed.`,
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
	p.from.flags(command)
	command.Flags().StringSliceVarP(&p.manifests, "filename", "f", nil, "manifests to check: files, or directories of YAML files")
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
	if p.clusters(ctx) {
		source := boot.Source{Reader: objects, Namespace: p.namespace, Version: boot.FixedVersion(p.version)}
		vms, types, err := p.view.operations(nil, source, "")
		if err != nil {
			return err
		}
		checker := nodeclassstatus.NewChecker(objects, nodeclassstatus.Deps{
			Inventory: p.view.inventory, Types: types, Boot: source, Health: vms.Health, CloneTimes: vms.CloneTimes, Clock: clock.RealClock{},
		})
		if err := p.classes(ctx, checker, objects); err != nil {
			return err
		}
	}
	if p.failed > 0 {
		return fmt.Errorf("%d checks failed, see the lines with FAIL", p.failed)
	}
	return nil
}

// clusters polls each cluster and reports whether at least one is usable.
func (p *preflight) clusters(ctx context.Context) bool {
	usable := 0
	for _, client := range p.view.clients {
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
		if host.Unusable != "" {
			p.fail("host %s/%s is not usable: %s", host.Region, host.Name, host.Unusable)
			continue
		}
		p.ok("host %s/%s: %d of %d CPUs and %s of %s memory are free", host.Region, host.Name,
			host.Free.CPUs, host.Allocatable.CPUs, gib(host.Free.MemoryBytes), gib(host.Allocatable.MemoryBytes))
	}
	return usable > 0
}

// classes checks the NodeClasses of the manifests. If there are none, it checks the
// privileges that every NodeClass needs.
func (p *preflight) classes(ctx context.Context, checker *nodeclassstatus.Checker, objects *manifests) error {
	planned := p.templates(objects)
	found := false
	for _, object := range objects.objects {
		class, ok := object.(*v1alpha1.ProxmoxNodeClass)
		if !ok {
			continue
		}
		found = true
		if err := p.check(ctx, checker, class); err != nil {
			return err
		}
		fmt.Fprintf(p.out, "\nProxmoxNodeClass %s\n", class.Name)
		p.printClass(class, planned[class.Spec.InstanceTemplateRef.Name] && class.Spec.InstanceTemplateRef.Kind == v1alpha1.ProxmoxTemplateKind)
	}
	if found {
		return nil
	}
	class := &v1alpha1.ProxmoxNodeClass{Spec: v1alpha1.ProxmoxNodeClassSpec{MetadataOptions: v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeCDROM}}}
	if err := p.check(ctx, checker, class); err != nil {
		return err
	}
	p.condition(*class.StatusConditions().Get(v1alpha1.ConditionPrivilegesSufficient))
	return nil
}

// check checks a class twice, with a refresh in between: the first check determines
// which additional data the inventory reads.
func (p *preflight) check(ctx context.Context, checker *nodeclassstatus.Checker, class *v1alpha1.ProxmoxNodeClass) error {
	if err := checker.Check(ctx, class); err != nil {
		return err
	}
	_ = p.view.inventory.RefreshAll(ctx) // clusters has already printed unreachable ones
	return checker.Check(ctx, class)
}

// templates resolves the unmanaged templates and checks whether the managed ones can be
// created. It returns the names of those that can.
func (p *preflight) templates(objects *manifests) map[string]bool {
	planned := map[string]bool{}
	for _, object := range objects.objects {
		switch t := object.(type) {
		case *v1alpha1.ProxmoxUnmanagedTemplate:
			unmanagedstatus.Resolve(p.view.inventory, t)
		case *v1alpha1.ProxmoxTemplate:
			planned[t.Name] = p.locations(t, p.view.inventory.View())
		}
	}
	return planned
}

// locations prints the hosts on which a template can be created and reports whether
// there is one.
func (p *preflight) locations(t *v1alpha1.ProxmoxTemplate, view inventory.View) (possible bool) {
	fmt.Fprintf(p.out, "\nProxmoxTemplate %s\n", t.Name)
	for _, location := range template.Locations(view, template.NewDesired(t, nil), nil) {
		if location.Problem != "" {
			p.fail("host %s/%s: %s", location.Region, location.Host, location.Problem)
			continue
		}
		possible = true
		p.ok("host %s/%s: storage %s for the image, storage %s for the template", location.Region, location.Host, location.Images, location.Storage)
	}
	return possible
}

// printClass prints the conditions and unusable hosts of a class. A missing template that
// can be created is not a failure.
func (p *preflight) printClass(class *v1alpha1.ProxmoxNodeClass, templatePlanned bool) {
	for _, condition := range class.StatusConditions().List() {
		switch {
		case condition.Type == status.ConditionReady:
		case condition.Type == v1alpha1.ConditionInstanceTemplateReady && condition.IsFalse() && templatePlanned:
			p.printf("skip", "%s: %s", condition.Type, condition.Message)
		default:
			p.condition(condition)
		}
	}
	for _, zone := range class.Status.UnusableZones {
		if len(class.Status.SelectedZones) > 0 {
			p.printf("note", "%s is not usable: %s", zone.Zone, zone.Reason)
		}
	}
}

func (p *preflight) condition(condition status.Condition) {
	text := condition.Type
	if condition.Message != "" {
		text += ": " + condition.Message
	}
	switch {
	case condition.IsTrue():
		p.ok("%s", text)
	case condition.IsFalse():
		p.fail("%s", text)
	default:
		p.printf("skip", "%s", text)
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
