// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// templateSource is the status of a NodeClass's template object.
type templateSource struct {
	// zones with the template, by <region>/<host>.
	zones map[string]v1alpha1.TemplateZone
	// problem is why there are none.
	problem string
}

// checkTemplate checks whether the Host has the template, and whether it can be cloned
// for the class.
func checkTemplate(z zone) *problem {
	ref := z.class.Spec.InstanceTemplateRef
	switch {
	case z.source.problem != "":
		return &problem{message: z.source.problem}
	case z.template == nil && z.outOfService != "":
		return z.hostProblem("%s %q is not on this host: %s", ref.Kind, ref.Name, z.outOfService)
	case z.template == nil:
		return z.hostProblem("%s %q is not on this host", ref.Kind, ref.Name)
	case z.config == nil:
		return nil // listed, but not read yet
	}
	if err := vmconfig.CheckTemplate(*z.config, z.class); err != nil {
		return z.hostProblem("template %d cannot be used: %v", z.template.VMID, err)
	}
	return nil
}

// readTemplateSource reads the template object of a NodeClass.
func (c *Checker) readTemplateSource(ctx context.Context, ref v1alpha1.InstanceTemplateReference) (templateSource, error) {
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
			return templateSource{}, fmt.Errorf("reading %s %s: %w", ref.Kind, ref.Name, err)
		}
		return templateSource{problem: fmt.Sprintf("spec.instanceTemplateRef names %s %q, which does not exist; create it, or set one that is listed by: kubectl get %ss",
			ref.Kind, ref.Name, strings.ToLower(ref.Kind))}, nil
	}
	if !object.GetDeletionTimestamp().IsZero() {
		// New VMs would block the deletion.
		return templateSource{problem: fmt.Sprintf("%s %q is being deleted; set another one in spec.instanceTemplateRef", ref.Kind, ref.Name)}, nil
	}
	return newTemplateSource(ref, *status), nil
}

func newTemplateSource(ref v1alpha1.InstanceTemplateReference, status v1alpha1.ProxmoxTemplateStatus) templateSource {
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
