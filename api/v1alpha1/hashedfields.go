// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// HashedFields returns the fields in Hash with their values: those whose change replaces the Nodes of this class. A key is
// the path of a field below spec, for example "bootDevice.size". Fields that are not set are omitted.
func (in *ProxmoxNodeClass) HashedFields() map[string]string {
	out := map[string]string{}
	spec := reflect.ValueOf(in.Spec)

	for i := range spec.NumField() {
		field := spec.Type().Field(i)
		if field.Tag.Get("hash") == "ignore" || spec.Field(i).IsZero() {
			continue
		}

		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		flatten(name, jsonValue(spec.Field(i).Interface()), out)
	}

	for _, i := range in.Spec.Network.hashedInterfaces() {
		flatten("network.interfaces["+i.Name+"]", jsonValue(i.InterfaceDevice), out)
	}

	return out
}

// RecordVersion makes HashedFields the first of the versions in the status.
func (in *ProxmoxNodeClass) RecordVersion() {
	current := in.Hash()
	if len(in.Status.Versions) > 0 && in.Status.Versions[0].Hash == current {
		return
	}

	versions := slices.DeleteFunc(slices.Clone(in.Status.Versions), func(v NodeClassVersion) bool { return v.Hash == current })
	versions = slices.Insert(versions, 0, NodeClassVersion{Hash: current, Fields: in.HashedFields()})
	in.Status.Versions = versions[:min(len(versions), maxVersions)]
}

// jsonValue returns a value as encoding/json decodes it: as map, slice, string, number or boolean.
func jsonValue(value any) any {
	raw, err := json.Marshal(value)
	if err != nil {
		// Only channels and functions cannot be encoded, and no field is one.
		return nil
	}

	var out any
	_ = json.Unmarshal(raw, &out)

	return out
}

// flatten adds the leaves of a value. The order of a list does not matter, as in the hash.
func flatten(path string, value any, out map[string]string) {
	switch value := value.(type) {
	case nil:
	case map[string]any:
		if len(value) == 0 {
			out[path] = "{}"
		}

		for key, inner := range value {
			flatten(path+"."+key, inner, out)
		}
	case []any:
		texts := make([]string, 0, len(value))

		for _, item := range value {
			raw, _ := json.Marshal(item) // decoded from JSON
			texts = append(texts, string(raw))
		}

		slices.Sort(texts)
		out[path] = "[" + strings.Join(texts, ",") + "]"
	default:
		out[path] = fmt.Sprint(value)
	}
}
