// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"encoding/json"

	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// WithoutEmptyPatches returns a client that does not send patches without effect. It is for
// Karpenter's core, which patches the metadata and then the status of a NodeClaim when one
// of them changed. A patch that is not sent does not refresh the object and does not return
// NotFound; core uses neither.
func WithoutEmptyPatches(kube client.Client) client.Client { return &patchFilter{Client: kube} }

type patchFilter struct{ client.Client }

func (f *patchFilter) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	_, isNodeClaim := object.(*karpv1.NodeClaim)
	if empty, err := isEmpty(object, patch, isNodeClaim); empty || err != nil {
		return err
	}
	return f.Client.Patch(ctx, object, patch, options...)
}

func (f *patchFilter) Status() client.SubResourceWriter {
	return &statusPatchFilter{SubResourceWriter: f.Client.Status()}
}

type statusPatchFilter struct{ client.SubResourceWriter }

func (f *statusPatchFilter) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
	if empty, err := isEmpty(object, patch, false); empty || err != nil {
		return err
	}
	return f.SubResourceWriter.Patch(ctx, object, patch, options...)
}

// isEmpty reports whether the body of a patch has no fields. With ignoreStatus, the status does not count: core sends
// it in the patch of the metadata, where the API server ignores it.
func isEmpty(object client.Object, patch client.Patch, ignoreStatus bool) (bool, error) {
	body, err := patch.Data(object)
	if err != nil {
		return false, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return false, nil //nolint:nilerr // a JSON patch is a list
	}
	if ignoreStatus {
		delete(fields, "status")
	}
	return len(fields) == 0, nil
}
