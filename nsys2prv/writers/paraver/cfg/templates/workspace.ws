<?xml version="1.0" encoding="UTF-8" standalone="yes" ?>
<!DOCTYPE boost_serialization>
<boost_serialization signature="serialization::archive" version="17">
<workspace class_id="0" tracking_level="0" version="1">
	<name>{{ name | e }}</name>
	<autoTypes>
		<count>{{ types | length }}</count>
		<item_version>0</item_version>
{% for code in types %}
		<item>{{ code }}</item>
{% endfor %}
	</autoTypes>
	<hintCFGs class_id="2" tracking_level="0" version="0">
		<count>{{ views | length }}</count>
		<item_version>0</item_version>
{% for file, title, _ in views %}
		<item{{ ' class_id="3" tracking_level="0" version="0"' if loop.first }}>
			<first>{{ file | e }}</first>
			<second>{{ title | e }}</second>
		</item>
{% endfor %}
	</hintCFGs>
</workspace>
</boost_serialization>

{% for file, _, text in views %}
============={{ file }}
{{ text }}
{%- endfor %}
