// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
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
				err = m.add(content)
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

// add adds the objects of a file. It skips unknown kinds, because files may contain
// other objects as well.
func (m *manifests) add(content []byte) error {
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = m.addDocument(document)
		}
		if err != nil {
			return err
		}
	}
}

// addDocument adds an object, or the items of a list.
func (m *manifests) addDocument(document []byte) error {
	items, err := listItems(document)
	if err != nil {
		return err
	}
	for n, item := range items {
		if err := m.addDocument(item); err != nil {
			return fmt.Errorf("items[%d]: %w", n, err)
		}
	}
	if items != nil {
		return nil
	}
	if document, err = applyDefaults(document); err != nil {
		return err
	}
	object, _, err := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer().Decode(document, nil, nil)
	if runtime.IsNotRegisteredError(err) || runtime.IsMissingKind(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if secret, ok := object.(*corev1.Secret); ok {
		storeStrings(secret)
	}
	if o, ok := object.(client.Object); ok {
		m.objects = append(m.objects, o)
	}
	return nil
}

// listItems returns the items of a list; nil if the document is not a list. Items of a list
// such as SecretList have no kind of their own.
func listItems(document []byte) ([][]byte, error) {
	var list map[string]any
	if err := sigsyaml.Unmarshal(document, &list); err != nil {
		return nil, err
	}
	kind, _ := list["kind"].(string)
	kind, isList := strings.CutSuffix(kind, "List")
	entries, hasItems := list["items"].([]any)
	if !isList || !hasItems {
		return nil, nil
	}
	if err := sigsyaml.UnmarshalStrict(document, &map[string]any{}); err != nil {
		return nil, err // a repeated key
	}
	items := make([][]byte, 0, len(entries))
	for _, entry := range entries {
		if item, ok := entry.(map[string]any); ok && kind != "" && item["kind"] == nil {
			item["kind"], item["apiVersion"] = kind, list["apiVersion"]
		}
		content, err := sigsyaml.Marshal(entry)
		if err != nil {
			return nil, err
		}
		items = append(items, content)
	}
	return items, nil
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
func (m *manifests) facts() []inventory.Fact {
	facts := []inventory.Fact{inventory.FactRoles}
	for _, o := range m.objects {
		if t, ok := o.(*v1alpha1.ProxmoxTemplate); ok && t.Spec.ResourcePool != "" {
			facts = append(facts, inventory.FactPool(t.Spec.ResourcePool))
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
		if reflect.TypeOf(o) == reflect.TypeOf(into) && client.ObjectKeyFromObject(o) == key {
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
