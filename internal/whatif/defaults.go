// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
)

// setDefaults sets the fields of a custom resource that the API server would set. Without
// them the hash of a NodeClass would differ, and all its Nodes would count as drifted.
func setDefaults(object client.Object) error {
	kind, err := apiutil.GVKForObject(object, scheme.Scheme)
	if err != nil {
		return fmt.Errorf("setting the defaults of %s: %w", object.GetName(), err)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err == nil {
		err = crds.SetDefaults(kind, content)
	}
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(content, object)
	}
	if err != nil {
		return fmt.Errorf("setting the defaults of %s %s: %w", kind.Kind, object.GetName(), err)
	}
	return nil
}
