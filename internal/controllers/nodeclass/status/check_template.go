// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// templateSource is what the template object of a class says.
type templateSource struct {
	// zones that have the Template, by <region>/<host>.
	zones map[string]v1alpha1.TemplateZone
	// problem tells why there are none.
	problem string
}

// template looks whether the Host has the Template, and whether VMs can be made of it.
func template(z zone) *finding {
	ref := z.class.Spec.InstanceTemplateRef
	switch {
	case z.source.problem != "":
		return &finding{text: z.source.problem}
	case z.template == nil:
		return z.onHost("%s %q is not on this host", ref.Kind, ref.Name)
	case z.config == nil:
		return nil // not read yet; it was found, so that it is there
	}
	if err := vmconfig.CheckTemplate(*z.config, z.class); err != nil {
		return z.onHost("template %d cannot be used: %v", z.template.VMID, err)
	}
	return nil
}

// templateSource reads the template object of a class.
func (c *Checker) templateSource(ctx context.Context, ref v1alpha1.InstanceTemplateReference) (templateSource, error) {
	var object client.Object
	var status *v1alpha1.ProxmoxTemplateStatus
	switch ref.Kind {
	case v1alpha1.ProxmoxTemplateKind:
		template := &v1alpha1.ProxmoxTemplate{}
		object, status = template, &template.Status
	default:
		template := &v1alpha1.ProxmoxUnmanagedTemplate{}
		object, status = template, &template.Status
	}
	if err := c.reader.Get(ctx, types.NamespacedName{Name: ref.Name}, object); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return templateSource{}, fmt.Errorf("reading %s %s, %w", ref.Kind, ref.Name, err)
		}
		return templateSource{problem: fmt.Sprintf("spec.instanceTemplateRef names %s %q, which does not exist", ref.Kind, ref.Name)}, nil
	}
	if !object.GetDeletionTimestamp().IsZero() {
		// New VMs would keep it for ever.
		return templateSource{problem: fmt.Sprintf("%s %q is being deleted; name another one in spec.instanceTemplateRef", ref.Kind, ref.Name)}, nil
	}
	return sourceOf(ref, *status), nil
}

func sourceOf(ref v1alpha1.InstanceTemplateReference, status v1alpha1.ProxmoxTemplateStatus) templateSource {
	source := templateSource{zones: map[string]v1alpha1.TemplateZone{}}
	for _, entry := range status.Zones {
		if z, err := v1alpha1.ParseTemplateZone(entry); err == nil {
			source.zones[z.Zone()] = z
		}
	}
	if len(source.zones) > 0 {
		return source
	}
	source.problem = fmt.Sprintf("%s %q is on no host yet", ref.Kind, ref.Name)
	for _, condition := range status.Conditions {
		if condition.Type == v1alpha1.ConditionTemplateReady && condition.Message != "" {
			source.problem += ": " + condition.Message
		}
	}
	return source
}
