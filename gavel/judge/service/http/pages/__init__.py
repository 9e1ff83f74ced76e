"""The pages for people: recent judgements at `/`, and one group as a table of its members at `/judgements/{id}`.

list_page      recent judgements, by `list_filter`     group_page   one group, by `member_rows` and `stored_request`
sign_in        an API key for a session in a cookie    viewer       who looks, by that cookie
page_route     refusals as pages                       html         templates, and headers of every page
assets         style, script and icon                  wording      numbers and times as text

Pages read and change nothing. Every text is escaped by Jinja, no template is built from one, and the policy of their
headers runs no script but the service's own. Without scripts they show the same.
"""
