// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
)

// sampleCA replaces the cluster's certificate authority in rendered boot data.
const sampleCA = "-----BEGIN CERTIFICATE-----\nMIIBsample\n-----END CERTIFICATE-----\n"

// manifests is a client.Reader of objects in files.
type manifests struct{ objects []client.Object }

var _ client.Reader = (*manifests)(nil)

// readManifests reads files and the YAML files of directories.
func readManifests(paths []string, systemNamespace string) (*manifests, error) {
	ca := &corev1.ConfigMap{Data: map[string]string{"ca.crt": sampleCA}}
	ca.Namespace, ca.Name = systemNamespace, "kube-root-ca.crt"
	m := &manifests{objects: []client.Object{ca}}
	for _, path := range paths {
		files := []string{path}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			if files, err = listFiles(path); err != nil {
				return nil, fmt.Errorf("listing %s: %w", path, err)
			}
		}
		for _, file := range files {
			content, err := os.ReadFile(file) //nolint:gosec // the path is a command line argument
			if err == nil {
				err = m.add(string(content))
			}
			if err != nil {
				return nil, fmt.Errorf("reading %s: %w", file, err)
			}
		}
	}
	return m, nil
}

// listFiles returns the files of a directory that kubectl would read.
func listFiles(directory string) ([]string, error) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, entry := range entries {
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(entry.Name())) && !entry.IsDir() {
			files = append(files, filepath.Join(directory, entry.Name()))
		}
	}
	return files, nil
}

// add adds the objects of a file.
func (m *manifests) add(content string) error {
	for _, document := range splitDocuments(content) {
		data, err := sigsyaml.YAMLToJSONStrict([]byte(document))
		if err != nil {
			return err
		}
		var object map[string]any
		if err := json.Unmarshal(data, &object); err != nil {
			return errors.New("found a list or a single value, want an object with apiVersion and kind")
		}
		if err := m.addObject(object); err != nil {
			return err
		}
	}
	return nil
}

// splitDocuments returns the YAML documents of a file. Each starts with an empty line for
// every line before it, so the lines in errors are those of the file.
func splitDocuments(content string) []string {
	var documents []string
	lines, before, start, end := 0, 0, 0, 0
	for line := range strings.Lines(content) {
		lines++
		if rest, ok := strings.CutPrefix(line, "---"); ok && strings.TrimSpace(strings.SplitN(rest, "#", 2)[0]) == "" {
			documents = append(documents, strings.Repeat("\n", before)+content[start:end])
			before, start = lines, end+len(line)
		}
		end += len(line)
	}
	return append(documents, strings.Repeat("\n", before)+content[start:])
}

// addObject adds an object with the defaults of its CRD, or the items of a list. It returns
// an error if the API server would reject the object. It skips unknown kinds, because files
// may contain other objects as well.
func (m *manifests) addObject(content map[string]any) error {
	if items, ok := listItems(content); ok {
		for n, item := range items {
			if err := m.addObject(item); err != nil {
				return fmt.Errorf("items[%d]: %w", n, err)
			}
		}
		return nil
	}
	source := unstructured.Unstructured{Object: content}
	object, err := decodeObject(source)
	if err != nil {
		return fmt.Errorf("%s %s: %w", source.GetKind(), source.GetName(), err)
	}
	if secret, ok := object.(*corev1.Secret); ok {
		storeStrings(secret)
	}
	if object != nil {
		// As with kubectl apply, the last one counts.
		m.objects = slices.DeleteFunc(m.objects, func(o client.Object) bool { return isObject(o, object, client.ObjectKeyFromObject(object)) })
		m.objects = append(m.objects, object)
	}
	return nil
}

// isObject reports whether an object has the type of another one and the given name.
func isObject(o, typed client.Object, key client.ObjectKey) bool {
	return reflect.TypeOf(o) == reflect.TypeOf(typed) && client.ObjectKeyFromObject(o) == key
}

// decodeObject returns the object, or nil if its kind is unknown. Unknown fields are
// reported first: because of them, required fields can be missing.
func decodeObject(source unstructured.Unstructured) (client.Object, error) {
	kind := source.GroupVersionKind()
	if err := crds.SetDefaults(kind, source.Object); err != nil {
		return nil, err
	}
	var object client.Object
	var decodeErr error
	if empty, err := scheme.Scheme.New(kind); err == nil {
		object, _ = empty.(client.Object)
		decodeErr = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(source.Object, empty, true)
	}
	if runtime.IsStrictDecodingError(decodeErr) {
		return nil, decodeErr
	}
	if err := crds.Validate(context.Background(), kind, source.Object); err != nil {
		return nil, err
	}
	return object, typeError(source.Object, object, decodeErr)
}

// typeError returns the error of a value with a wrong type. That of the converter does not
// name the field.
func typeError(source map[string]any, object client.Object, decodeErr error) error {
	if decodeErr == nil {
		return nil
	}
	data, err := stdjson.Marshal(source)
	if err != nil {
		return decodeErr
	}
	if mismatch := (*stdjson.UnmarshalTypeError)(nil); errors.As(stdjson.Unmarshal(data, object), &mismatch) {
		return fmt.Errorf("%s: found a %s, want a %s", mismatch.Field, mismatch.Value, mismatch.Type)
	}
	return decodeErr
}

// listItems returns the items of a list, and whether the object is one. Items of a list
// such as SecretList have no kind of their own.
func listItems(content map[string]any) ([]map[string]any, bool) {
	kind, _ := content["kind"].(string)
	kind, isList := strings.CutSuffix(kind, "List")
	entries, hasItems := content["items"].([]any)
	if !isList || !hasItems {
		return nil, false
	}
	items := make([]map[string]any, 0, len(entries))
	for _, entry := range entries {
		item, _ := entry.(map[string]any)
		if item != nil && kind != "" && item["kind"] == nil {
			item["kind"], item["apiVersion"] = kind, content["apiVersion"]
		}
		items = append(items, item)
	}
	return items, true
}

// storeStrings copies stringData to data, as the API server does.
func storeStrings(secret *corev1.Secret) {
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	for key, value := range secret.StringData {
		secret.Data[key] = []byte(value)
	}
}

// classes returns the sorted names of all NodeClasses.
func (m *manifests) classes() []string {
	var names []string
	for _, class := range m.nodeClasses() {
		names = append(names, class.Name)
	}
	slices.Sort(names)
	return names
}

// nodeClasses returns the NodeClasses in the order of the files.
func (m *manifests) nodeClasses() []*v1alpha1.ProxmoxNodeClass {
	var classes []*v1alpha1.ProxmoxNodeClass
	for _, o := range m.objects {
		if class, ok := o.(*v1alpha1.ProxmoxNodeClass); ok {
			classes = append(classes, class)
		}
	}
	return classes
}

// hasOwnKinds reports whether there is a NodeClass or a template.
func (m *manifests) hasOwnKinds() bool {
	return slices.ContainsFunc(m.objects, func(o client.Object) bool {
		switch o.(type) {
		case *v1alpha1.ProxmoxNodeClass, *v1alpha1.ProxmoxTemplate, *v1alpha1.ProxmoxUnmanagedTemplate:
			return true
		}
		return false
	})
}

// facts returns the facts of a cluster that are read on demand to check the templates.
func (m *manifests) facts() []poll.Fact {
	facts := []poll.Fact{poll.FactRoles}
	for _, o := range m.objects {
		if t, ok := o.(*v1alpha1.ProxmoxTemplate); ok && t.Spec.ResourcePool != "" {
			facts = append(facts, poll.FactPool(t.Spec.ResourcePool))
		}
	}
	return facts
}

// cannotBuild reports whether a managed template of the manifests cannot be built for a
// host.
func (m *manifests) cannotBuild(ref v1alpha1.InstanceTemplateReference, region, host string) bool {
	for _, o := range m.objects {
		if t, ok := o.(*v1alpha1.ProxmoxTemplate); ok && ref.Kind == v1alpha1.ProxmoxTemplateKind && t.Name == ref.Name {
			return !slices.ContainsFunc(t.Status.Zones, func(entry string) bool { return strings.HasPrefix(entry, region+"/"+host+"/") })
		}
	}
	return false
}

// Get implements client.Reader.
func (m *manifests) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	for _, o := range m.objects {
		if isObject(o, into, key) {
			reflect.ValueOf(into).Elem().Set(reflect.ValueOf(o.DeepCopyObject()).Elem())
			return nil
		}
	}
	kind := reflect.TypeOf(into).Elem().Name()
	return apierrors.NewNotFound(schema.GroupResource{Resource: "manifest of kind " + kind}, key.String())
}

// List implements client.Reader. It ignores the options.
func (m *manifests) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	items, err := meta.GetItemsPtr(into)
	if err != nil {
		return err
	}
	list := reflect.ValueOf(items).Elem()
	for _, o := range m.objects {
		if object := reflect.ValueOf(o.DeepCopyObject()).Elem(); object.Type() == list.Type().Elem() {
			list.Set(reflect.Append(list, object))
		}
	}
	return nil
}
