// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// World is what the work on Templates must know of the Kubernetes cluster.
type Observed struct {
	Desired []template.Desired
	Classes []v1alpha1.ProxmoxNodeClass
	Claims  []karpv1.NodeClaim
}

// Survey reads the World.
func Observe(ctx context.Context, kube client.Client) (Observed, error) {
	templates, classes, claims := &v1alpha1.ProxmoxTemplateList{}, &v1alpha1.ProxmoxNodeClassList{}, &karpv1.NodeClaimList{}
	for _, list := range []client.ObjectList{templates, classes, claims} {
		if err := kube.List(ctx, list); err != nil {
			return Observed{}, fmt.Errorf("listing what concerns templates, %w", err)
		}
	}
	w := Observed{Classes: classes.Items, Claims: claims.Items}
	for i := range templates.Items {
		w.Desired = append(w.Desired, template.NewDesired(&templates.Items[i], classes.Items))
	}
	return w, nil
}

// Around is what concerns one ProxmoxTemplate.
func (w Observed) Usage(t *v1alpha1.ProxmoxTemplate) template.Usage {
	return template.Usage{Desired: w.Desired, InUse: func(region string, vmid int) string { return w.needed(t, region, vmid) }}
}

// needed says who needs a Template: the status that VMs are planned by, launches that
// were planned with it, and VMs that are linked to it.
func (w Observed) needed(t *v1alpha1.ProxmoxTemplate, region string, vmid int) string {
	linked := 0
	for i := range w.Claims {
		claim := &w.Claims[i]
		in, ok, err := instance.ReadIntent(claim)
		if err != nil {
			return err.Error() // this may be the Template that it names
		}
		if !ok || in.Region != region || in.TemplateID != vmid {
			continue
		}
		if launched := claim.Annotations[v1alpha1.AnnotationLaunchCompleted] != ""; !launched || !in.Full {
			linked++
		}
	}
	if linked > 0 {
		return fmt.Sprintf("%d nodes are linked clones of it", linked)
	}
	if !t.DeletionTimestamp.IsZero() {
		if users := w.ClaimsUsing(v1alpha1.ProxmoxTemplateKind, t.Name); len(users) > 0 {
			return fmt.Sprintf("%d nodeclaims still use the ProxmoxTemplate", len(users))
		}
		return ""
	}
	if lists(t.Status.Zones, region, vmid) {
		return "it is in use until the new one is everywhere"
	}
	for _, class := range w.Classes {
		if lists(class.Status.SelectedZones, region, vmid) {
			return fmt.Sprintf("nodeclass %s still uses it", class.Name)
		}
	}
	return ""
}

func lists(zones []string, region string, vmid int) bool {
	return slices.ContainsFunc(zones, func(entry string) bool {
		zone, err := v1alpha1.ParseTemplateZone(entry)
		return err == nil && zone.Region == region && zone.VMID == vmid
	})
}

// Users are the Claims of all classes that refer to a template.
func (w Observed) ClaimsUsing(kind, name string) []string {
	classes := map[string]bool{}
	for _, class := range w.Classes {
		ref := class.Spec.InstanceTemplateRef
		classes[class.Name] = ref.Kind == kind && ref.Name == name
	}
	var out []string
	for _, claim := range w.Claims {
		if claim.Spec.NodeClassRef != nil && claim.Spec.NodeClassRef.Kind == v1alpha1.ProxmoxNodeClassKind && classes[claim.Spec.NodeClassRef.Name] {
			out = append(out, claim.Name)
		}
	}
	return out
}
